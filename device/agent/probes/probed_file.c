// SPDX-License-Identifier: Apache-2.0
#include "agent/probes/probed_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"

static int check(struct ml_probed_file *file, const struct stat *status)
{
	struct ml_file_version version = { .device = status->st_dev,
					   .inode = status->st_ino,
					   .bytes = (ml_u64)status->st_size,
					   .modified_ns = (ml_u64)status->st_mtim.tv_sec * 1000000000ull +
							  (ml_u64)status->st_mtim.tv_nsec };

	if (!S_ISREG(status->st_mode))
		return EINVAL;
	if (file->version.inode && memcmp(&file->version, &version, sizeof(version)))
		return ESTALE;
	file->version = version;
	return 0;
}

int ml_probed_file_open(struct ml_probed_file *file)
{
	struct stat status;
	int found, error;

	if (file->fd >= 0)
		return 0;
	found = open(file->path, O_PATH | O_CLOEXEC);
	if (found < 0)
		return errno;
	error = fstat(found, &status) ? errno : check(file, &status);
	if (!error) {
		snprintf(file->by_descriptor, sizeof(file->by_descriptor), "/proc/self/fd/%d", found);
		file->fd = open(file->by_descriptor, O_RDONLY | O_CLOEXEC);
		error = file->fd < 0 ? errno : 0;
		snprintf(file->by_descriptor, sizeof(file->by_descriptor), "/proc/self/fd/%d", file->fd);
	}
	close(found);
	return error;
}

int ml_probed_file_require(struct ml_probed_file *file)
{
	int error = ml_probed_file_open(file);

	if (!error)
		return 0;
	if (error == ESTALE)
		return ml_blocks_error(ML_REASON_TARGET_ERROR,
				       "%s is not the file that was read: it was replaced meanwhile (try again)", file->path);
	if (error == EINVAL)
		return ml_blocks_error(ML_REASON_TARGET_ERROR, "%s is not a regular file (name the program's own file)",
				       file->path);
	return ml_blocks_error(ML_REASON_TARGET_ERROR, "could not open %s: %s", file->path, strerror(error));
}

void ml_probed_file_close(struct ml_probed_file *file)
{
	if (file->fd >= 0)
		close(file->fd);
	file->fd = -1;
}
