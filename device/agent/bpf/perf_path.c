// SPDX-License-Identifier: Apache-2.0
#include "agent/bpf/perf_path.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <stdlib.h>
#include <string.h>

/* Pages of one CPU's buffer, a power of two. */
#define EVIDENCE_PAGES 4096
#define EVENT_PAGES 256
/* perf_sample's size is 16 bits: the kernel keeps stack dumps below it (kernel/events/core.c). */
#define STACK_DUMP_MAX 65528u - 4096u

#if defined(__x86_64__)
/* arch/x86/include/uapi/asm/perf_regs.h: AX BX CX DX SI DI BP SP IP … R8 … R15, in the order of their bits. */
#define PERF_REGISTERS ((0x1ffull) | (0xffull << 16))
#define N_PERF_REGISTERS 17
/* Where each goes in struct pt_regs. */
static const unsigned char register_slots[N_PERF_REGISTERS] = {
	10, 5, 11, 12, 13, 14, 4, 19, 16, 9, 8, 7, 6, 3, 2, 1, 0,
};
#define N_REGISTERS 21
#define SP_SLOT 19
#elif defined(__aarch64__)
/* arch/arm64/include/uapi/asm/perf_regs.h: x0 … x29, lr, sp, pc, in the order of struct user_pt_regs; no pstate. */
#define PERF_REGISTERS ((1ull << 33) - 1)
#define N_PERF_REGISTERS 33
static const unsigned char register_slots[N_PERF_REGISTERS] = {
	0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16,
	17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32,
};
#define N_REGISTERS 34
#define SP_SLOT 31
#else
#define PERF_REGISTERS 0ull
#define N_PERF_REGISTERS 0
static const unsigned char register_slots[1];
#define N_REGISTERS 0
#define SP_SLOT 0
#endif

struct ml_perf_path {
	struct perf_buffer *evidence, *events;
	ring_buffer_sample_fn on_record;
	void *context;
	ml_u64 lost;
	int records;
	struct {
		struct ml_evidence head;
		ml_u64 registers[N_REGISTERS + 1];
		char stack[65536];
	} whole;
};

/* PERF_RECORD_SAMPLE with RAW, then REGS_USER, then STACK_USER, in the order of perf_event_open(2). */
struct sample {
	struct perf_event_header header;
	ml_u32 raw_bytes;
	char raw[];
};

/* at: the end of the raw data; end: of the sample. */
static void add_user_state(struct ml_perf_path *path, const char *at, const char *end)
{
	struct ml_evidence *head = &path->whole.head;
	ml_u64 abi, size = 0, dumped = 0;
	char *stack = (char *)(path->whole.registers + N_REGISTERS);

	memcpy(&abi, at, sizeof(abi));
	at += sizeof(abi);
	if (abi != PERF_SAMPLE_REGS_ABI_NONE && end - at >= (long)(N_PERF_REGISTERS * sizeof(ml_u64))) {
		memset(path->whole.registers, 0, sizeof(path->whole.registers));
		for (int i = 0; i < N_PERF_REGISTERS; i++)
			path->whole.registers[register_slots[i]] = ((const ml_u64 *)at)[i];
		at += N_PERF_REGISTERS * sizeof(ml_u64);
		head->n_registers = N_REGISTERS;
	}
	if (end - at >= (long)sizeof(size))
		memcpy(&size, at, sizeof(size));
	at += sizeof(size);
	if (size && end - at >= (long)(size + sizeof(dumped)) && size <= sizeof(path->whole.stack)) {
		memcpy(&dumped, at + size, sizeof(dumped));
		memcpy(stack, at, dumped <= size ? dumped : 0);
	}
	head->stack_bytes = (ml_u32)(dumped <= size ? dumped : 0);
	/* The kernel dumps from its own idea of sp: an address that differs would shift every slot. */
	if (path->whole.registers[SP_SLOT])
		head->stack_address = path->whole.registers[SP_SLOT];
	if (head->stack_bytes < size)
		head->flags |= ML_EVIDENCE_STACK_WHOLE;
	head->record_bytes = (ml_u32)(sizeof(*head) + head->n_registers * sizeof(ml_u64) + head->stack_bytes + 7) & ~7u;
}

static enum bpf_perf_event_ret on_evidence(void *context, int cpu, struct perf_event_header *header)
{
	struct ml_perf_path *path = context;
	const struct sample *sample = (const struct sample *)header;
	const char *end = (const char *)header + header->size;
	const char *behind = sample->raw + sample->raw_bytes;

	(void)cpu;
	if (header->type == PERF_RECORD_LOST)
		path->lost += ((const ml_u64 *)(header + 1))[1];
	if (header->type != PERF_RECORD_SAMPLE || sample->raw_bytes < sizeof(struct ml_evidence) || behind + 8 > end)
		return LIBBPF_PERF_EVENT_CONT;
	memcpy(&path->whole.head, sample->raw, sizeof(path->whole.head));
	path->whole.head.n_registers = 0;
	add_user_state(path, behind, end);
	path->records++;
	path->on_record(path->context, &path->whole, path->whole.head.record_bytes);
	return LIBBPF_PERF_EVENT_CONT;
}

static void on_event(void *context, int cpu, void *data, ml_u32 bytes)
{
	struct ml_perf_path *path = context;
	struct ml_event event;

	(void)cpu;
	if (bytes < sizeof(event))
		return;
	memcpy(&event, data, sizeof(event)); /* raw data begins at 4 bytes behind a multiple of 8 */
	path->on_record(path->context, &event, sizeof(event));
}

static void on_lost_event(void *context, int cpu, unsigned long long n)
{
	(void)cpu;
	((struct ml_perf_path *)context)->lost += n;
}

struct ml_perf_path *ml_perf_path_open(int evidence_fd, int events_fd, ml_u32 stack_bytes, ring_buffer_sample_fn on_record,
				       void *context)
{
	ml_u32 dump = stack_bytes < STACK_DUMP_MAX ? stack_bytes : STACK_DUMP_MAX;
	struct perf_event_attr attributes = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(attributes),
		.config = PERF_COUNT_SW_BPF_OUTPUT,
		.sample_period = 1,
		.sample_type = PERF_SAMPLE_RAW | PERF_SAMPLE_REGS_USER | PERF_SAMPLE_STACK_USER,
		.sample_regs_user = PERF_REGISTERS,
		.sample_stack_user = dump & ~7u,
		.watermark = 1,
		.wakeup_watermark = 1u << 30,
	};
	struct ml_perf_path *path = calloc(1, sizeof(*path));

	if (!path)
		return NULL;
	path->on_record = on_record;
	path->context = context;
	path->evidence = perf_buffer__new_raw(evidence_fd, EVIDENCE_PAGES, &attributes, on_evidence, path, NULL);
	path->events = perf_buffer__new(events_fd, EVENT_PAGES, on_event, on_lost_event, path, NULL);
	if (!path->evidence || !path->events) {
		int error = errno;

		ml_perf_path_close(path);
		errno = error;
		return NULL;
	}
	return path;
}

int ml_perf_path_drain(struct ml_perf_path *path)
{
	path->records = 0;
	perf_buffer__consume(path->events);
	perf_buffer__consume(path->evidence);
	return path->records;
}

ml_u64 ml_perf_path_lost(const struct ml_perf_path *path)
{
	return path->lost;
}

void ml_perf_path_close(struct ml_perf_path *path)
{
	if (!path)
		return;
	perf_buffer__free(path->evidence);
	perf_buffer__free(path->events);
	free(path);
}
