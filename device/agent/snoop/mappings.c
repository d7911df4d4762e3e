// SPDX-License-Identifier: Apache-2.0
#include "agent/snoop/mappings.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/protocol/blocks.h"
#include "agent/process/process_maps.h"
#include "agent/process/sideband.h"

struct ml_snoop_mappings {
	struct ml_sideband *sideband;
	int n;
	ml_u32 pids[];
};

static bool is_traced(void *context, ml_u32 pid)
{
	const struct ml_snoop_mappings *mappings = context;

	for (int i = 0; i < mappings->n; i++)
		if (mappings->pids[i] == pid)
			return true;
	return false;
}

/* After an exec the maps contain what the side band lacks: the vdso, the stack. */
static void on_process(void *context, const struct ml_process *record)
{
	(void)context;
	if (record->event != ML_PROCESS_EXEC)
		return;
	ml_blocks_write(ML_BLOCK_PROCESS, record, sizeof(*record));
	ml_process_maps_report(record->pid);
}

struct ml_snoop_mappings *ml_snoop_mappings_open(const int *pids, int n)
{
	struct ml_snoop_mappings *mappings = calloc(1, sizeof(*mappings) + sizeof(mappings->pids[0]) * (size_t)n);
	struct ml_sideband_ops ops = { is_traced, ml_sideband_write_mapping, on_process, mappings };

	if (!mappings)
		return NULL;
	mappings->n = n;
	for (int i = 0; i < n; i++)
		mappings->pids[i] = (ml_u32)pids[i];
	mappings->sideband = ml_sideband_open(-1, ops);
	if (mappings->sideband)
		return mappings;
	ml_blocks_error(ML_REASON_TRACER_ERROR, "could not follow mappings, which stacks need: %s (run as root)",
			strerror(errno));
	free(mappings);
	return NULL;
}

int ml_snoop_mappings_begin(struct ml_snoop_mappings *mappings)
{
	int result = 0;

	for (int i = 0; i < mappings->n && !result; i++)
		result = ml_process_maps_report(mappings->pids[i]);
	return result;
}

void ml_snoop_mappings_drain(struct ml_snoop_mappings *mappings)
{
	ml_sideband_drain(mappings->sideband);
}

void ml_snoop_mappings_close(struct ml_snoop_mappings *mappings)
{
	if (!mappings)
		return;
	ml_sideband_close(mappings->sideband);
	free(mappings);
}

/* ---- addresses of probes ----------------------------------------------------------------------------- */

struct ml_snoop_addresses {
	size_t bytes;
	char text[];
};

/* Adds the probes of one file that lie in the mapping. */
static void add_sites(struct ml_snoop *snoop, const struct ml_snoop_config *config, ml_u32 pid, ml_u32 file,
		      const struct ml_maps_line *line)
{
	for (ml_u32 i = 0; i < config->n_sites; i++) {
		const struct ml_snoop_site *site = &config->sites[i];

		if (site->file == file && site->kind != ML_PROBE_RETURN &&
		    site->offset - line->offset < line->end - line->start)
			ml_snoop_add_address(snoop, pid, line->start + site->offset - line->offset,
					     site->function | (site->kind == ML_PROBE_TAIL ? ML_SNOOP_TAIL : 0));
	}
}

static void add_line(struct ml_snoop *snoop, const struct ml_snoop_config *config, ml_u32 pid, const struct ml_maps_line *line)
{
	for (ml_u32 file = 0; file < config->n_files; file++) {
		if (config->files[file].pid && (ml_u32)config->files[file].pid != pid)
			continue;
		if (config->session.files[config->files[file].file].version.inode == line->inode)
			add_sites(snoop, config, pid, file, line);
	}
}

void ml_snoop_addresses_update(struct ml_snoop *snoop, const struct ml_snoop_config *config, ml_u32 pid,
			       struct ml_snoop_addresses **known)
{
	struct ml_maps_line line;
	size_t bytes;
	char *text = ml_process_maps_read(pid, &bytes);

	if (!text)
		return;
	if (!*known || (*known)->bytes != bytes || memcmp((*known)->text, text, bytes)) {
		for (const char *at = text; (at = ml_process_maps_code(at, &line));)
			add_line(snoop, config, pid, &line);
		free(*known);
		*known = malloc(sizeof(**known) + bytes);
		if (*known) {
			(*known)->bytes = bytes;
			memcpy((*known)->text, text, bytes);
		}
	}
	free(text);
}
