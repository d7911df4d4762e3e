/* SPDX-License-Identifier: Apache-2.0 */
/* The addresses that hold code, as of the last reading of the maps. A part of the segment. */
#pragma once

#include "signature.h"

#define ML_CODE_PAGE_SHIFT 12
#define ML_CODE_CLUSTERS 4u
#define ML_CODE_PAGES (1u << 22) /* 16 GiB of address space in all clusters together */

/* A span of pages, some of them executable. Bit i of the map's bits is page first_page + i - first_bit. */
struct ml_code_cluster {
	ml_u64 first_page;
	ml_u32 n_pages;
	ml_u32 first_bit;
};

/* UNREAD: they changed and could not be read, for example without a free descriptor; tried again at the next call. */
enum ml_maps_state { ML_MAPS_CLEAN, ML_MAPS_DIRTY, ML_MAPS_BEING_READ, ML_MAPS_UNREAD };

struct ml_code_map {
	ml_u32 n_clusters;
	ml_u32 generation; /* changes when executable pages are unmapped: an address may mean other code now */
	ml_u32 revision;   /* changes with every reading */
	ml_u32 reserved;
	/*
	 * Begin of the reading, also sent with the maps. A block's time lies between that of its map and that of the
	 * next one, so the host resolves it in the right mappings.
	 */
	ml_u64 timestamp_ns;
	ml_u64 signature_mask; /* signature.h */
	struct ml_code_cluster clusters[ML_CODE_CLUSTERS];
	ml_u64 bits[ML_CODE_PAGES / 64];
};

/* 1 for all code and for gaps between libraries. */
static inline int ml_code_map_spans(const struct ml_code_map *map, ml_u64 address)
{
	ml_u64 page = ml_strip_signature(address, map->signature_mask) >> ML_CODE_PAGE_SHIFT;
	int is_spanned = 0;

	/* Unused clusters have no pages. Nearly always one holds the program and the other the libraries. */
	for (ml_u32 i = 0; i < 2; i++)
		is_spanned |= page - map->clusters[i].first_page < map->clusters[i].n_pages;
	for (ml_u32 i = 2; i < map->n_clusters && i < ML_CODE_CLUSTERS; i++)
		is_spanned |= page - map->clusters[i].first_page < map->clusters[i].n_pages;
	return is_spanned;
}

static inline int ml_code_map_has(const struct ml_code_map *map, ml_u64 address)
{
	ml_u64 page = ml_strip_signature(address, map->signature_mask) >> ML_CODE_PAGE_SHIFT;

	for (ml_u32 i = 0; i < ML_CODE_CLUSTERS; i++) {
		ml_u64 index = page - map->clusters[i].first_page;

		if (i < map->n_clusters && index < map->clusters[i].n_pages) {
			ml_u64 bit = (map->clusters[i].first_bit + index) % ML_CODE_PAGES;

			return map->bits[bit / 64] >> bit % 64 & 1;
		}
	}
	return 0;
}
