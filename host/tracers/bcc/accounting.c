// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only OR BSD-2-Clause
/*
 * The accounting of --tracer bcc, compiled on the machine that runs it. It needs only struct pt_regs of the
 * kernel's headers, so headers of another version work. host/tracers/bcc/programs.py appends a pair of programs
 * for each probed function, and defines the constants that are undefined here by -D.
 */
#include <linux/ptrace.h>

#define STACK_WORDS (STACK_BYTES / 8)
#define PAGE 4096u
#define GRANULE_SHIFT 16
#define GRANULES (1 << 18)
/* Linux on x86_64 maps from 0x7fff... downwards, and programs from 0x5555... upwards: ELF_ET_DYN_BASE, mmap_base(). */
#define MAPPED(word) ((word) >> 44 == 7 || (word) >> 44 == 5)

/* The head of struct ml_evidence (device/wire.h). */
struct block {
	u32 record_bytes;
	u16 flags, function;
	u64 sequence, timestamp_ns, key, address, size;
	u32 pid, tid;
};

/* struct ml_evidence with the registers of one x86_64 thread and its stack behind it. */
struct evidence {
	struct block block;
	u16 n_registers, n_fixups;
	u32 stack_bytes;
	u64 stack_address, registers_known, fixups[8], registers[21], stack[STACK_WORDS];
	u64 beyond[PAGE / 8]; /* never filled, but the verifier cannot prove that */
};

/* A thread and its call in progress. Calls within it are the allocator's own, or of a signal handler and lost. */
struct thread {
	u64 sp, size, pointer; /* sp: 0 = none */
	u32 function, n_tail_calls;
	u64 has_old;
	struct block old; /* of realloc, until its return */
	struct evidence evidence;
};

struct key_counts {
	u64 alloc_objects, alloc_bytes, free_objects, free_bytes, flags, is_sent;
};

/* The mapped code, set by code_map() of session.py: a bit for each 64 KiB at a hash of the address. */
struct code_map {
	u8 is_no_code[GRANULES / 8]; /* where MAPPED(): a new mapping counts as code */
	u64 low, high;               /* bounds of code elsewhere, of programs linked to a fixed address; 0: unknown */
};

enum {
	ALLOC_OBJECTS, ALLOC_BYTES, FREE_OBJECTS, FREE_BYTES, UNTRACKED_FREES, EVIDENCE_RECORDS,
	LOST, /* by enum ml_lost of device/wire.h from here on */
	LOST_RING_FULL = LOST, LOST_STACK_FAULT, LOST_TABLE_FULL, LOST_KEYS_FULL, LOST_THREADS_FULL, LOST_PENDING_FULL,
	LOST_MISSED_ENTRY, LOST_MISSED_RETURN, LOST_MISSED_FREE,
	N_COUNTERS = LOST + LOST_MAX,
};

BPF_F_TABLE("hash", u64, struct block, live, MAX_LIVE, BPF_F_NO_PREALLOC);
BPF_F_TABLE("hash", u64, struct key_counts, keys, MAX_KEYS, BPF_F_NO_PREALLOC);
BPF_TABLE("hash", u32, struct thread, threads, MAX_THREADS);
BPF_ARRAY(no_thread, struct thread, 1);
BPF_ARRAY(code, struct code_map, 1);
BPF_ARRAY(counters, u64, N_COUNTERS);
BPF_RINGBUF_OUTPUT(ring, RING_PAGES);

static inline void count(int which, u64 amount)
{
	u64 *counter = counters.lookup(&which);

	if (counter)
		__sync_fetch_and_add(counter, amount);
}

static inline u64 mix(u64 key, u64 word)
{
	key = (key ^ word) * 0x9e3779b97f4a7c15ull;
	return key ^ key >> 29;
}

static inline struct thread *this_thread(void)
{
	u32 tid = (u32)bpf_get_current_pid_tgid();
	int zero = 0;
	struct thread *empty = no_thread.lookup(&zero);
	struct thread *thread = empty ? threads.lookup_or_try_init(&tid, empty) : 0;

	if (!thread)
		count(LOST_THREADS_FULL, 1);
	return thread;
}

static inline void release_key(struct block *block)
{
	struct key_counts *key = keys.lookup(&block->key);

	count(FREE_OBJECTS, 1);
	count(FREE_BYTES, block->size);
	if (!key)
		return;
	__sync_fetch_and_add(&key->free_objects, 1);
	__sync_fetch_and_add(&key->free_bytes, block->size);
}

/* Removes a block from the table. */
static inline bool claim(u64 address, struct block *block)
{
	struct block *found = live.lookup(&address);

	if (!found)
		return false;
	*block = *found;
	return live.delete(&address) == 0;
}

static inline bool put(u64 address, struct block *block)
{
	struct block *old = live.lookup(&address);

	if (old) {
		count(LOST_MISSED_FREE, 1);
		release_key(old);
	}
	if (!live.update(&address, block))
		return true;
	count(LOST_TABLE_FULL, 1);
	return false;
}

/* Copies the stack from sp up to the first unreadable page. Returns its bytes. */
static inline u32 copy_stack(struct evidence *evidence, u64 sp)
{
	u32 first = (PAGE - (sp & (PAGE - 1))) & (PAGE - 1), bytes = first;

	if (!bpf_probe_read_user(evidence->stack, STACK_BYTES, (void *)sp))
		return STACK_BYTES;
	evidence->block.flags |= 2; /* ML_EVIDENCE_STACK_WHOLE */
	if (bpf_probe_read_user(evidence->stack, first, (void *)sp))
		return 0;
#pragma unroll
	for (u32 i = 0; i < STACK_BYTES / PAGE; i++) { /* unrolled, so that the verifier sees constants */
		if (bpf_probe_read_user((char *)evidence->stack + i * PAGE + first, PAGE, (void *)(sp + first + i * PAGE)))
			break;
		bytes = first + (i + 1) * PAGE;
	}
	return bytes & (STACK_BYTES - 1); /* a whole slice was copied above */
}

/* Whether a word may be a return address. A new library must count, or two stacks get one key. */
static inline bool may_be_code(struct code_map *map, u64 word)
{
	u64 granule = word >> GRANULE_SHIFT;
	u32 hash = (u32)(granule ^ granule >> 18) & (GRANULES - 1);

	if (MAPPED(word))
		return !(map->is_no_code[hash >> 3] & 1 << (hash & 7));
	return !map->high || word - map->low < map->high - map->low;
}

/* Hash of the words that may be return addresses. */
static inline u64 stack_key(struct evidence *evidence, u64 return_address, u32 bytes)
{
	int zero = 0;
	struct code_map *map = code.lookup(&zero);
	u64 key = mix(bytes == STACK_BYTES ? 0 : bytes, return_address);

	for (u32 i = 0; map && i < STACK_WORDS && i < bytes / 8; i++) {
		u64 word = evidence->stack[i];

		if (may_be_code(map, word))
			key = mix(key, word);
	}
	return key | 1;
}

/* Sends the stack once for each key. */
static inline void send(struct evidence *evidence, struct key_counts *key, u32 bytes)
{
	if ((key->is_sent && !EVERY_STACK) || bytes > sizeof(*evidence))
		return;
	if (ring.ringbuf_output(evidence, bytes, 0)) {
		count(LOST_RING_FULL, 1);
		return;
	}
	key->is_sent = 1;
	count(EVIDENCE_RECORDS, 1);
}

static inline void record(struct pt_regs *ctx, struct thread *thread, u64 address)
{
	struct evidence *evidence = &thread->evidence;
	struct block *block = &evidence->block;
	u64 id = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns();
	struct key_counts none = {}, *key;
	u32 bytes;

	if (thread->size < MIN_SIZE || thread->size > MAX_SIZE)
		return;
	block->flags = 1; /* ML_EVIDENCE_AT_RETURN */
	bytes = copy_stack(evidence, PT_REGS_SP(ctx));
	if (!bytes)
		count(LOST_STACK_FAULT, 1);
	block->record_bytes = offsetof(struct evidence, stack) + bytes;
	block->function = thread->function;
	block->sequence = now << 8 | (bpf_get_smp_processor_id() & 255); /* of two calls in one nanosecond */
	block->timestamp_ns = now;
	block->key = stack_key(evidence, PT_REGS_IP(ctx), bytes);
	block->address = address;
	block->size = thread->size;
	block->pid = id >> 32;
	block->tid = (u32)id;
	if (!put(address, block))
		return;
	count(ALLOC_OBJECTS, 1);
	count(ALLOC_BYTES, block->size);
	none.flags = bytes == STACK_BYTES ? 2 : 0; /* ML_KEY_PARTIAL */
	key = keys.lookup_or_try_init(&block->key, &none);
	if (!key) {
		count(LOST_KEYS_FULL, 1);
		return;
	}
	__sync_fetch_and_add(&key->alloc_objects, 1);
	__sync_fetch_and_add(&key->alloc_bytes, block->size);
	bpf_probe_read_kernel(evidence->registers, sizeof(evidence->registers), ctx);
	evidence->n_registers = 21;
	evidence->stack_bytes = bytes;
	evidence->stack_address = PT_REGS_SP(ctx);
	evidence->registers_known = 0x9003f; /* r12 - r15, bx, bp, ip, sp: psABI x86-64, 3.2.3 */
	send(evidence, key, offsetof(struct evidence, stack) + bytes);
}

/* Whether a call returns to the allocator's own code. low, high: its bounds, relative to the probe. */
static inline bool returns_between(struct pt_regs *ctx, u64 low, u64 high)
{
	u64 address = 0;

	bpf_probe_read_user(&address, sizeof(address), (void *)PT_REGS_SP(ctx));
	return address - PT_REGS_IP(ctx) - low < high - low;
}

static inline int enter(struct pt_regs *ctx, u32 function, u64 size, u64 pointer, bool frees, bool is_own_code)
{
	struct thread *thread = this_thread();
	u64 sp = PT_REGS_SP(ctx);

	if (!thread)
		return 0;
	if (thread->sp && thread->sp < sp) { /* left by longjmp() */
		count(LOST_MISSED_RETURN, 1);
		thread->sp = 0;
	}
	if (thread->sp) {
		thread->n_tail_calls += thread->sp == sp;
		if (thread->sp != sp && !is_own_code)
			count(LOST_PENDING_FULL, 1);
		return 0;
	}
	thread->sp = sp;
	thread->size = size;
	thread->pointer = pointer;
	thread->function = function;
	thread->n_tail_calls = 0;
	thread->has_old = frees && pointer && claim(pointer, &thread->old);
	if (frees && pointer && !thread->has_old)
		count(UNTRACKED_FREES, 1);
	return 0;
}

/* is_out: the block is stored at the pointer argument, and the return value is an error number. */
static inline int leave(struct pt_regs *ctx, bool is_out)
{
	u32 tid = (u32)bpf_get_current_pid_tgid();
	struct thread *thread = threads.lookup(&tid);
	u64 address = PT_REGS_RC(ctx);

	if (!thread) /* up to Linux 6.12 other tracers' return probes run this too */
		return 0;
	if (thread->sp != PT_REGS_SP(ctx) - 8) {
		if (!thread->sp)
			count(LOST_MISSED_ENTRY, 1);
		return 0;
	}
	if (thread->n_tail_calls) { /* the returns of one return address come last call first */
		thread->n_tail_calls--;
		return 0;
	}
	thread->sp = 0;
	if (is_out && ((s32)address != 0 || bpf_probe_read_user(&address, sizeof(address), (void *)thread->pointer)))
		return 0;
	if (thread->has_old && (address || !thread->size))
		release_key(&thread->old);
	else if (thread->has_old)
		put(thread->pointer, &thread->old);
	if (address)
		record(ctx, thread, address);
	return 0;
}

static inline int release(u64 pointer, bool is_own_code)
{
	struct block block = {};

	if (pointer && claim(pointer, &block))
		release_key(&block);
	else if (pointer && !is_own_code) /* glibc empties a thread's cache through free() */
		count(UNTRACKED_FREES, 1);
	return 0;
}

RAW_TRACEPOINT_PROBE(sched_process_exit)
{
	u32 tid = (u32)bpf_get_current_pid_tgid();

	threads.delete(&tid);
	return 0;
}
