/* SPDX-License-Identifier: Apache-2.0 */
/* Which addresses hold code: a part of the segment, made anew whenever the maps are read. */
#pragma once

#include "wire.h"

#define ML_CODE_PAGE_SHIFT 12
#define ML_CODE_CLUSTERS 4u
#define ML_CODE_PAGES (1u << 22) /* 16 GiB of address space in all clusters together */

/* A span of pages of which some are executable; bit i of the map's bits is page first_page + i - first_bit. */
struct ml_code_cluster {
	ml_u64 first_page;
	ml_u32 n_pages;
	ml_u32 first_bit;
};

enum ml_maps_state { ML_MAPS_CLEAN, ML_MAPS_DIRTY, ML_MAPS_BEING_READ };

struct ml_code_map {
	ml_u32 n_clusters;
	ml_u32 generation; /* changes when executable pages went away: an address may mean other code now */
	ml_u32 revision;   /* changes with every reading */
	ml_u32 reserved;
	/*
	 * When its reading began; the maps that the agent got bear it too. A block lies between the time of the map that
	 * named it and the next one's, so that the host resolves it in the mappings of its time.
	 */
	ml_u64 timestamp_ns;
	ml_u64 address_mask; /* what of a saved return address is the address: the rest may sign it (arm64 PAC) */
	struct ml_code_cluster clusters[ML_CODE_CLUSTERS];
	ml_u64 bits[ML_CODE_PAGES / 64];
};

/* 1 for all code, and for what lies between one library and the next. */
static inline int ml_code_map_spans(const struct ml_code_map *map, ml_u64 address)
{
	ml_u64 page = (address & map->address_mask) >> ML_CODE_PAGE_SHIFT;
	int is_spanned = 0;

	/* Those that are not used have no pages; nearly always the program is one and the libraries are the other. */
	for (ml_u32 i = 0; i < 2; i++)
		is_spanned |= page - map->clusters[i].first_page < map->clusters[i].n_pages;
	for (ml_u32 i = 2; i < map->n_clusters && i < ML_CODE_CLUSTERS; i++)
		is_spanned |= page - map->clusters[i].first_page < map->clusters[i].n_pages;
	return is_spanned;
}

static inline int ml_code_map_has(const struct ml_code_map *map, ml_u64 address)
{
	ml_u64 page = (address & map->address_mask) >> ML_CODE_PAGE_SHIFT;

	for (ml_u32 i = 0; i < ML_CODE_CLUSTERS; i++) {
		ml_u64 index = page - map->clusters[i].first_page;

		if (i < map->n_clusters && index < map->clusters[i].n_pages) {
			ml_u64 bit = (map->clusters[i].first_bit + index) % ML_CODE_PAGES;

			return map->bits[bit / 64] >> bit % 64 & 1;
		}
	}
	return 0;
}
