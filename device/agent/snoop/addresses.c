// SPDX-License-Identifier: Apache-2.0
#include "agent/snoop/addresses.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/process/process_maps.h"

struct ml_snoop_addresses {
	size_t bytes;
	char text[];
};

/* Adds the probes of one file whose offsets are in [offset, offset + size). */
static void add_places(struct ml_snoop *snoop, const struct ml_snoop_config *config, ml_u32 pid, ml_u32 file, ml_u64 start,
		       ml_u64 offset, ml_u64 size)
{
	for (ml_u32 i = 0; i < config->n_sites; i++) {
		const struct ml_snoop_site *site = &config->sites[i];

		if (site->file == file && site->kind != ML_PROBE_RETURN && site->offset - offset < size)
			ml_snoop_add_address(snoop, pid, start + site->offset - offset,
					     site->function | (site->kind == ML_PROBE_TAIL ? ML_SNOOP_TAIL : 0));
	}
}

static void add_line(struct ml_snoop *snoop, const struct ml_snoop_config *config, ml_u32 pid, const char *line)
{
	unsigned long long start, end, offset, inode;
	char permissions[5];

	if (sscanf(line, "%llx-%llx %4s %llx %*s %llu", &start, &end, permissions, &offset, &inode) != 5 || permissions[2] != 'x')
		return;
	for (ml_u32 file = 0; file < config->n_files; file++) {
		struct stat status;

		if (config->files[file].pid && (ml_u32)config->files[file].pid != pid)
			continue;
		if (!stat(config->files[file].path, &status) && status.st_ino == inode)
			add_places(snoop, config, pid, file, start, offset, end - start);
	}
}

void ml_snoop_addresses_update(struct ml_snoop *snoop, const struct ml_snoop_config *config, ml_u32 pid,
			       struct ml_snoop_addresses **known)
{
	size_t bytes;
	char *text = ml_process_maps_read(pid, &bytes);

	if (!text)
		return;
	if (!*known || (*known)->bytes != bytes || memcmp((*known)->text, text, bytes)) {
		for (const char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
			add_line(snoop, config, pid, line);
		free(*known);
		*known = malloc(sizeof(**known) + bytes);
		if (*known) {
			(*known)->bytes = bytes;
			memcpy((*known)->text, text, bytes);
		}
	}
	free(text);
}

void ml_snoop_addresses_forget(struct ml_snoop_addresses *known)
{
	free(known);
}
