// SPDX-License-Identifier: Apache-2.0
#include "agent/process/sideband.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"

/*
 * Pages of one CPU's buffer beside its header page, a power of two: a process start makes about 2 KiB, without mappings
 * 200 bytes. Without privilege there are 512 KiB a CPU (perf_event_mlock_kb).
 */
#define RING_PAGES 256
#define RING_PAGES_OF_ONE 32

struct cpu_ring {
	int fd;
	struct perf_event_mmap_page *header;
	ml_u64 next_time; /* of its oldest record; ~0 = empty */
};

struct ml_sideband {
	struct ml_sideband_ops ops;
	struct cpu_ring *rings;
	int n_rings;
	size_t page_bytes;
	size_t ring_pages;
	char record[65536]; /* one record, unwrapped */
};

/* The end of each requested record: PERF_SAMPLE_TID | PERF_SAMPLE_TIME. */
struct trailer {
	ml_u32 pid, tid;
	ml_u64 time;
};

struct mmap2_record {
	struct perf_event_header header;
	ml_u32 pid, tid;
	ml_u64 address, length, file_offset;
	ml_u32 device_major, device_minor;
	ml_u64 inode, inode_generation;
	ml_u32 protection, flags;
	char path[];
};

struct task_record { /* PERF_RECORD_FORK and PERF_RECORD_EXIT */
	struct perf_event_header header;
	ml_u32 pid, parent, tid, parent_tid;
	ml_u64 time;
};

struct comm_record {
	struct perf_event_header header;
	ml_u32 pid, tid;
	char comm[];
};

static int open_cpu(const struct ml_sideband *sideband, int pid, int cpu)
{
	struct perf_event_attr attributes = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(attributes),
		.config = PERF_COUNT_SW_DUMMY,
		.sample_type = PERF_SAMPLE_TID | PERF_SAMPLE_TIME,
		.sample_id_all = 1,
		.inherit = pid >= 0,
		.mmap = sideband->ops.on_mapping != NULL,
		.mmap2 = sideband->ops.on_mapping != NULL,
		.comm = 1,
		.comm_exec = 1,
		.task = 1,
		.exclude_kernel = 1,
		.use_clockid = 1,
		.clockid = CLOCK_MONOTONIC,
		.watermark = 1,
		.wakeup_watermark = 1u << 30,
	};

	return (int)syscall(SYS_perf_event_open, &attributes, pid, cpu, -1, PERF_FLAG_FD_CLOEXEC);
}

static bool open_ring(struct ml_sideband *sideband, int pid, int cpu)
{
	struct cpu_ring *ring = &sideband->rings[sideband->n_rings];

	ring->fd = open_cpu(sideband, pid, cpu);
	if (ring->fd < 0)
		return errno == ENODEV; /* a CPU that is off line */
	ring->header =
		mmap(NULL, (sideband->ring_pages + 1) * sideband->page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, 0);
	if (ring->header == MAP_FAILED) {
		close(ring->fd);
		return false;
	}
	sideband->n_rings++;
	return true;
}

struct ml_sideband *ml_sideband_open(int pid, struct ml_sideband_ops ops)
{
	int n_cpus = (int)sysconf(_SC_NPROCESSORS_CONF);
	struct ml_sideband *sideband = calloc(1, sizeof(*sideband));

	if (!sideband)
		return NULL;
	sideband->ops = ops;
	sideband->ring_pages = pid >= 0 ? RING_PAGES_OF_ONE : RING_PAGES;
	sideband->page_bytes = (size_t)sysconf(_SC_PAGESIZE);
	sideband->rings = calloc((size_t)n_cpus, sizeof(*sideband->rings));
	for (int cpu = 0; cpu < n_cpus; cpu++) {
		if (!sideband->rings || !open_ring(sideband, pid, cpu)) {
			int error = errno;

			ml_sideband_close(sideband);
			errno = error;
			return NULL;
		}
	}
	return sideband;
}

void ml_sideband_close(struct ml_sideband *sideband)
{
	if (!sideband)
		return;
	for (int i = 0; i < sideband->n_rings; i++) {
		munmap(sideband->rings[i].header, (sideband->ring_pages + 1) * sideband->page_bytes);
		close(sideband->rings[i].fd);
	}
	free(sideband->rings);
	free(sideband);
}

/* Copies bytes out of the ring, which may wrap. */
static void copy_out(const struct ml_sideband *sideband, const struct cpu_ring *ring, ml_u64 position, void *to, size_t bytes)
{
	const char *data = (const char *)ring->header + sideband->page_bytes;
	size_t size = sideband->ring_pages * sideband->page_bytes;
	size_t at = position % size;
	size_t first = bytes < size - at ? bytes : size - at;

	memcpy(to, data + at, first);
	memcpy((char *)to + first, data, bytes - first);
}

/* Copies the oldest record of a ring into sideband->record. False: there is none. */
static bool peek(struct ml_sideband *sideband, struct cpu_ring *ring)
{
	ml_u64 head = __atomic_load_n(&ring->header->data_head, __ATOMIC_ACQUIRE);
	ml_u64 tail = ring->header->data_tail;
	struct perf_event_header *header = (struct perf_event_header *)sideband->record;
	struct trailer trailer;

	if (tail == head)
		return false;
	copy_out(sideband, ring, tail, header, sizeof(*header));
	copy_out(sideband, ring, tail, sideband->record, header->size);
	memcpy(&trailer, sideband->record + header->size - sizeof(trailer), sizeof(trailer));
	ring->next_time = trailer.time;
	return true;
}

static void advance(struct ml_sideband *sideband, struct cpu_ring *ring)
{
	const struct perf_event_header *header = (const struct perf_event_header *)sideband->record;

	__atomic_store_n(&ring->header->data_tail, ring->header->data_tail + header->size, __ATOMIC_RELEASE);
}

static void report_mapping(struct ml_sideband *sideband, ml_u64 time)
{
	const struct mmap2_record *record = (const struct mmap2_record *)sideband->record;
	struct ml_mapping mapping = {
		.pid = record->pid,
		.timestamp_ns = time,
		.start = record->address,
		.end = record->address + record->length,
		.file_offset = record->file_offset,
		.inode = record->inode,
		.device_major = record->device_major,
		.device_minor = record->device_minor,
		.protection = record->protection | (record->flags & MAP_SHARED ? ML_MAPPING_SHARED : 0),
		.path_bytes = (ml_u32)strlen(record->path),
	};

	mapping.record_bytes = (ml_u32)(sizeof(mapping) + ((mapping.path_bytes + 7) & ~7u));
	if (sideband->ops.is_traced(sideband->ops.context, record->pid))
		sideband->ops.on_mapping(sideband->ops.context, &mapping, record->path);
}

static void report_process(struct ml_sideband *sideband, ml_u32 pid, ml_u32 parent, enum ml_process_event event, ml_u64 time,
			   const char *comm)
{
	struct ml_process process = { .timestamp_ns = time, .pid = pid, .parent = parent, .event = event, .status = -1 };

	if (comm)
		memcpy(process.comm, comm, strnlen(comm, sizeof(process.comm)));
	sideband->ops.on_process(sideband->ops.context, &process);
}

static void report_task(struct ml_sideband *sideband, bool is_fork)
{
	const struct task_record *record = (const struct task_record *)sideband->record;

	if (is_fork && record->pid != record->parent) {
		if (sideband->ops.is_traced(sideband->ops.context, record->parent))
			report_process(sideband, record->pid, record->parent, ML_PROCESS_FORK, record->time, NULL);
	} else if (!is_fork && record->pid == record->tid) {
		if (sideband->ops.is_traced(sideband->ops.context, record->pid))
			report_process(sideband, record->pid, record->parent, ML_PROCESS_EXIT, record->time, NULL);
	}
}

static void report_exec(struct ml_sideband *sideband, ml_u64 time)
{
	const struct comm_record *record = (const struct comm_record *)sideband->record;

	if (sideband->ops.is_traced(sideband->ops.context, record->pid))
		report_process(sideband, record->pid, 0, ML_PROCESS_EXEC, time, record->comm);
}

/* Reports the record in sideband->record. Returns the number of records that the kernel lost. */
static ml_u64 report(struct ml_sideband *sideband, ml_u64 time)
{
	const struct perf_event_header *header = (const struct perf_event_header *)sideband->record;
	ml_u64 lost[2]; /* id, count */

	switch (header->type) {
	case PERF_RECORD_MMAP2: report_mapping(sideband, time); break;
	case PERF_RECORD_FORK:
	case PERF_RECORD_EXIT: report_task(sideband, header->type == PERF_RECORD_FORK); break;
	case PERF_RECORD_COMM:
		if (header->misc & PERF_RECORD_MISC_COMM_EXEC)
			report_exec(sideband, time);
		break;
	case PERF_RECORD_LOST: memcpy(lost, sideband->record + sizeof(*header), sizeof(lost)); return lost[1];
	}
	return 0;
}

/*
 * The rings are merged by time. Records later than the start of the drain wait for the next one: an earlier
 * one may still be on its way into another CPU's ring.
 */
ml_u64 ml_sideband_drain(struct ml_sideband *sideband)
{
	ml_u64 until = ml_clock_ns();
	ml_u64 lost = 0;

	for (int i = 0; i < sideband->n_rings; i++)
		if (!peek(sideband, &sideband->rings[i]))
			sideband->rings[i].next_time = ~0ull;
	for (;;) {
		struct cpu_ring *oldest = NULL;

		for (int i = 0; i < sideband->n_rings; i++)
			if (sideband->rings[i].next_time <= until &&
			    (!oldest || sideband->rings[i].next_time < oldest->next_time))
				oldest = &sideband->rings[i];
		if (!oldest || !peek(sideband, oldest))
			return lost;
		lost += report(sideband, oldest->next_time);
		advance(sideband, oldest);
		if (!peek(sideband, oldest))
			oldest->next_time = ~0ull;
	}
}

void ml_sideband_write_mapping(void *context, const struct ml_mapping *record, const char *path)
{
	struct iovec parts[] = { { (void *)record, sizeof(*record) }, { (void *)path, record->path_bytes } };

	(void)context;
	ml_blocks_writev(ML_BLOCK_MAPPINGS, parts, 2);
}
