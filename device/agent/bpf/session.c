// SPDX-License-Identifier: Apache-2.0
#include "agent/bpf/session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"
#include "agent/probes/libbpf.h"
#include "agent/evidence/bounds.h"
#include "agent/bpf/follow.h"
#include "agent/bpf/images.h"
#include "agent/bpf/programs.h"
#include "agent/bpf/tables.h"
#include "agent/probes/probed_code.h"
#include "agent/process/process_maps.h"
#include "agent/process/sideband.h"
#include "agent/bpf/self_test.h"
#include "agent/probes/tracefs.h"
#include "agent/probes/uprobe_multi.h"
#include "bpf/session.h"

/*
 * Rings are drained at least this often, and at once again while they bring many records. Wake-ups would triple the cost of an
 * event in the target.
 */
#define BUSY_MS 1
#define IDLE_MS 10
#define BUSY_RECORDS 64
#define IDLE_ROUNDS 100
#define STATUS_NS 500000000ull
/* With --all: how often ended processes are removed, and how often while the key table is filling up. */
#define ENDED_NS 2000000000ull
#define ENDED_SOON_NS 250000000ull

/* Makes an event of SBRK without a size one of the region that came or went. false: there is none. */
static bool move_break(struct ml_breaks *breaks, struct ml_event *event)
{
	ml_u64 now = event->address, before = 0;
	ml_u32 slot = event->pid % ML_BREAKS;

	if (breaks->rows[slot].pid == event->pid)
		before = breaks->rows[slot].address;
	breaks->rows[slot].pid = event->pid;
	breaks->rows[slot].address = now;
	if (event->old_address == ML_BREAK_IS_NO_REGION || !before || now == before)
		return false;
	event->address = now < before ? now : before;
	event->size = now < before ? before - now : now - before;
	if (now < before)
		event->function = ML_FN_MUNMAP;
	return true;
}

static void on_event(struct ml_bpf_session *session, const struct ml_event *event)
{
	bool is_region = event->function >= ML_FN_MMAP && event->function < ML_FN_PAIR;
	struct ml_event whole = *event;
	int change = event->function == ML_FN_SBRK ? move_break(&session->breaks, &whole) :
						     ml_region_complete(&session->region_sizes, &whole);

	if (change < 0 || (is_region && change && ml_regions_apply(&session->regions, &whole)))
		session->base.lost[ML_LOST_REGIONS]++;
	if (change > 0 && session->base.config->events && (!is_region || session->base.config->mmap > 1))
		session->base.is_host_gone |= ml_event_batch_add(&session->events, &whole) != 0;
}

/* Of a packed record: head, at most 64 registers, ML_BPF_WORDS_MAX words with their offsets. */
#define PACKED_BYTES (sizeof(struct ml_evidence) + 64 * 8 + 8 + ML_BPF_WORDS_MAX * (8 + 2))

/* Stack words of the programs have a form of their own (bpf/session.h). Writes the form of struct ml_sparse_stack to `to`; NULL if the record is inconsistent. */
static const struct ml_evidence *pack(const struct ml_evidence *record, ml_u64 bytes, ml_u8 to[PACKED_BYTES])
{
	ml_u64 head = sizeof(*record) + record->n_registers * sizeof(ml_u64);
	const ml_u64 *from = (const void *)((const ml_u8 *)record + head);
	ml_u64 room = bytes > head + sizeof(*from) ? (bytes - head - sizeof(*from)) / (sizeof(ml_u64) + sizeof(ml_u16)) : 0;
	struct ml_sparse_stack *sparse = (void *)(to + head);
	ml_u16 *offsets;

	if (record->n_registers > 64 || !room || room > ML_BPF_WORDS_MAX || *from > room)
		return NULL;
	memcpy(to, record, head);
	sparse->n_words = *from;
	memcpy(sparse->words, from + 1, sparse->n_words * sizeof(ml_u64));
	offsets = ml_sparse_stack_offsets(sparse);
	memset(offsets, 0, (sparse->n_words * sizeof(*offsets) + 7) & ~7ull);
	for (ml_u64 i = 0; i < sparse->n_words; i++)
		offsets[i] = ((const ml_u16 *)(from + 1 + room))[i] & (ml_u16)~ML_BPF_OFFSET_OF_ADDRESS;
	record = (const void *)to;
	((struct ml_evidence *)(void *)to)->record_bytes = (ml_u32)head + ml_sparse_stack_bytes((ml_u32)sparse->n_words);
	return ml_sparse_stack_is_sound(record, record->record_bytes) ? record : NULL;
}

/* Adds a record of `bytes` bytes, at least its head. -1: out of memory, or the record is inconsistent. */
static int keep_evidence(struct ml_bpf_session *session, const struct ml_evidence *record, ml_u64 bytes)
{
	_Alignas(8) ml_u8 packed[PACKED_BYTES];

	if (record->flags & ML_EVIDENCE_STACK_SPARSE)
		record = pack(record, bytes, packed);
	else if (record->flags & ML_BPF_EVIDENCE_PAGED)
		record = ml_long_stacks_pack(&session->long_stacks, session->bpf.code, record);
	if (record && record->flags & ML_EVIDENCE_INTERRUPTED)
		record = ml_interrupted_stacks_join(&session->interrupted, record);
	return record ? ml_nursery_add(session->base.nursery, record) : -1;
}

/* A record with the program's own words, and its stack in one slice. NULL: it is inconsistent. */
static const struct ml_evidence *as_sent(struct ml_bpf_session *session, const struct ml_evidence *record, ml_u64 *bytes)
{
	if (*bytes < sizeof(*record))
		return NULL;
	if (record->flags & ML_BPF_EVIDENCE_PAGED)
		record = ml_long_stacks_join(&session->long_stacks, record, bytes);
	if (record && record->flags & ML_EVIDENCE_STACK_FAULT)
		session->base.lost[ML_LOST_STACK_FAULT]++;
	return record ? ml_trampolines_undo(&session->trampolines, ml_frames_arch(session->frames), record, *bytes) : NULL;
}

/* The size of a ring record gives its type. */
static int on_record(void *context, void *data, size_t data_bytes)
{
	struct ml_bpf_session *session = context;
	const struct ml_evidence *record;
	ml_u64 bytes = data_bytes;

	if (bytes == sizeof(struct ml_event)) {
		on_event(session, data);
		return 0;
	}
	if (bytes == sizeof(struct ml_bpf_returns)) {
		ml_trampolines_announce(&session->trampolines, data);
		return 0;
	}
	record = as_sent(session, data, &bytes);
	if (record && record->flags & ML_BPF_EVIDENCE_INTERRUPTED) {
		ml_interrupted_stacks_keep(&session->interrupted, record);
		ml_bpf_learn(&session->bpf, session->frames, record);
		return 0;
	}
	if (!record || (!session->base.config->no_evidence && keep_evidence(session, record, bytes))) {
		session->base.lost[ML_LOST_NURSERY_FULL]++;
	} else if (session->base.config->whole_machine && !ml_bpf_follow_report(session, record->pid)) {
		session->base.lost[ML_LOST_MAPPINGS]++;
	} else if (!(record->flags & ML_EVIDENCE_STACK_SPARSE)) { /* an exact key has all its rules */
		ml_stacks_add(&session->stacks, record);
		ml_bpf_learn(&session->bpf, session->frames, record);
	}
	session->evidence_records++;
	return 0;
}

static int open_session(struct ml_bpf_session *session)
{
	const struct ml_config *config = session->base.config;
	struct ml_nursery_source source = { ml_bpf_live_objects, ml_bpf_ask_again, ml_bpf_was_in_peak, &session->bpf };

	session->base.nursery = ml_nursery_create(config->nursery_bytes, config->older_ns, source);
	session->frames = ml_frames_create();
	if (!session->base.nursery || !session->frames || ml_long_stacks_create(&session->long_stacks) ||
	    ml_bpf_load(&session->bpf, config, on_record, session) || ml_bpf_begin_levels(&session->bpf))
		return -1;
	session->stacks.fd = session->bpf.stacks_fd;
	if (session->base.pid) {
		ml_bpf_add_process(&session->bpf, (ml_u32)session->base.pid);
		ml_process_set_add(&session->processes, (ml_u32)session->base.pid);
	}
	session->sideband = ml_bpf_follow_begin(session);
	if (!session->sideband)
		return ml_libbpf_fail("could not follow mappings", errno, "run as root");
	if (session->base.pid && !session->base.is_child) {
		ml_process_write((ml_u32)session->base.pid, ML_PROCESS_START, -1, ml_clock_ns());
		ml_bpf_follow_write_maps(session, (ml_u32)session->base.pid);
	}
	return 0;
}

/* The child calls free() with an address that is not a block; the programs must count it. */
static int test_probes(struct ml_bpf_session *session)
{
	if (!ml_self_test_possible(session->base.config) || session->base.config->empty_probes)
		return 0;
	session->self_tests = ml_self_test_run(&session->base.child, &session->bpf);
	return session->self_tests ? 0 : -1;
}

/* A call that began before the probes were placed does not count as missed. */
static void begin_counting(struct ml_bpf_session *session)
{
	for (ml_u32 cause = 0; cause < ML_LOST_MAX; cause++)
		session->before_armed[cause] = ml_bpf_counter(&session->bpf, cause);
	if (!session->base.is_child)
		__atomic_store_n(&session->bpf.code->is_attached, 1, __ATOMIC_SEQ_CST);
	ml_bpf_drain(&session->bpf);
	if (session->base.is_child)
		session->events.count = 0; /* of the self-test */
}

static int arm(struct ml_bpf_session *session)
{
	const struct ml_config *config = session->base.config;

	if ((config->follow || config->whole_machine) && ml_probed_code_spare(config, &session->bpf.links.spared))
		return -1;
	if (ml_bpf_attach(&session->bpf, config, config->follow || config->whole_machine ? -1 : session->base.pid))
		return -1;
	if (config->whole_machine) {
		session->base.lost[ML_LOST_PROGRAMS] += session->bpf.links.spared.n;
		begin_counting(session);
		return 0;
	}
	if (session->base.is_child ? test_probes(session) : ml_breakpoint_check(config, session->base.pid))
		return -1;
	if (config->follow && !session->base.is_child)
		ml_bpf_follow_descendants(session);
	begin_counting(session);
	return session->base.is_child ? ml_spawn_release(config, &session->base.child) : 0;
}

/* Returns the number of evidence records. */
static int drain(struct ml_bpf_session *session)
{
	int records;

	/* Mappings first: new stacks are resolved in them. */
	session->base.lost[ML_LOST_MAPPINGS] += ml_sideband_drain(session->sideband);
	session->region_sizes.n_looks = 0;
	records = ml_bpf_drain(&session->bpf);
	ml_bpf_recycle_rules(&session->bpf, session->frames, &session->processes);
	session->base.is_host_gone |= ml_event_batch_write(&session->events) != 0;
	return records;
}

/* A process stays in the set until its last records are drained. */
static void forget_ended(struct ml_bpf_session *session)
{
	bool is_target = session->base.pid && ml_session_target_has_ended(&session->base);

	if (!ml_process_set_find_ended(&session->processes, session->base.lost[ML_LOST_MAPPINGS]) && !is_target)
		return;
	drain(session);
	ml_process_set_drop_ended(&session->processes);
	if (!is_target)
		return;
	ml_process_set_remove(&session->processes, (ml_u32)session->base.pid);
	session->base.is_child = false;
	session->base.pid = 0;
}

static bool has_target_ended(struct ml_bpf_session *session)
{
	ml_bpf_follow_first_thread(session);
	ml_bpf_follow_check_probes(session);
	forget_ended(session);
	return !session->base.config->whole_machine && !session->base.pid &&
	       (!session->base.config->follow || !session->processes.count);
}

/* Ended children in the target's memory whose calls passed no probe. */
static ml_u64 unseen_borrowers(const struct ml_bpf_session *session)
{
	ml_u64 n = ml_bpf_misses_borrowers(session->base.config) ? ml_bpf_counter(&session->bpf, ML_BPF_BORROWERS) : 0;

	return n && session->bpf.has_multi && !ml_uprobe_multi_sees(ML_CALLS_IN_LENT_MEMORY) ? n : 0;
}

static int write_status(void *context)
{
	struct ml_bpf_session *session = context;
	ml_u64 lost[ML_LOST_MAX];

	for (int cause = 0; cause < ML_LOST_MAX; cause++)
		lost[cause] = session->base.lost[cause] - session->before_armed[cause];
	if (session->bpf.perf_path)
		lost[ML_LOST_RING_FULL] += ml_perf_path_lost(session->bpf.perf_path);
	lost[ML_LOST_PROGRAMS] += unseen_borrowers(session);
	return ml_bpf_status(&session->bpf, session->evidence_records, session->self_tests, lost);
}

static void log_children(const struct ml_bpf_session *session)
{
	ml_u64 measured = ml_bpf_counter(&session->bpf, ML_BPF_BORROWING_CHILDREN), unseen = unseen_borrowers(session);

	ml_blocks_log_children((measured < session->n_children ? session->n_children - measured : 0) +
			       ml_bpf_counter(&session->bpf, ML_BPF_CHILDREN_OF_BORROWERS));
	if (unseen)
		ml_blocks_log(
			"%llu child process%s ran in the target's memory (vfork, CLONE_VM), and their calls were not seen; "
			"use --follow",
			(unsigned long long)unseen, unseen == 1 ? "" : "es");
}

static int write_snapshot(void *context)
{
	struct ml_bpf_session *session = context;

	if (session->base.config->whole_machine) {
		ml_bpf_remove_ended(&session->bpf);
		ml_bpf_follow_report_all(session);
	}
	drain(session);
	return ml_nursery_flush(session->base.nursery) || ml_bpf_peak_write(&session->bpf) ||
	       ml_bpf_snapshot(&session->bpf, &session->regions, ++session->base.n_snapshots) || write_status(session);
}

static void forget_ended_processes(struct ml_bpf_session *session)
{
	ml_u64 now = ml_clock_ns();

	if (!session->base.config->whole_machine || now < session->next_ended_ns)
		return;
	ml_bpf_remove_ended(&session->bpf);
	session->next_ended_ns = now + (session->bpf.ended.n_keys > ML_BPF_KEY_SLOTS / 4 ? ENDED_SOON_NS : ENDED_NS);
}

/* How long the rings may wait after a drain of that many records. */
static int pause_after(struct ml_bpf_session *session, int records)
{
	session->idle_rounds = records ? 0 : session->idle_rounds + 1;
	if (records > BUSY_RECORDS)
		return 0;
	return session->idle_rounds < IDLE_ROUNDS ? BUSY_MS : IDLE_MS;
}

static void wait_for_input(void *session, int timeout_ms)
{
	ml_bpf_wait(&((struct ml_bpf_session *)session)->bpf, STDIN_FILENO, timeout_ms);
}

static int poll_target(void *context)
{
	struct ml_bpf_session *session = context;

	session->base.timeout_ms = pause_after(session, drain(session));
	ml_bpf_grow(&session->bpf, session->base.config->max_live);
	if (has_target_ended(session))
		return ML_REASON_TARGET_EXIT;
	forget_ended_processes(session);
	return 0;
}

static int end(void *context, enum ml_reason reason)
{
	struct ml_bpf_session *session = context;

	/* A target that runs must not change what is being read. */
	if (reason != ML_REASON_TARGET_EXIT)
		ml_bpf_detach(&session->bpf);
	write_snapshot(session);
	log_children(session);
	if (session->bpf.ended.objects)
		ml_blocks_log(
			"%llu bytes in %llu blocks were still held by programs when these ended, and are not in the report",
			(unsigned long long)session->bpf.ended.bytes, (unsigned long long)session->bpf.ended.objects);
	ml_blocks_end(reason, session->base.wait_status);
	return 0;
}

static int start(void *context)
{
	struct ml_bpf_session *session = context;

	return ml_probed_code_settle(&session->settled) || open_session(session) || arm(session) ? 5 : 0;
}

int ml_bpf_run(const struct ml_config *config)
{
	static const struct ml_session_ops ops = { start, wait_for_input, poll_target, write_snapshot, write_status, end };
	struct ml_bpf_session *session = calloc(1, sizeof(*session));
	int exit_code;

	if (!session)
		return 1;
	session->settled = *config;
	exit_code =
		ml_session_begin(&session->base, &session->settled, (struct ml_spawn_extra){ .self_test = ml_self_test_call });
	if (!exit_code) {
		session->base.status_interval_ns = STATUS_NS;
		ml_tracefs_mount();
		ml_blocks_hello(ML_COLLECTOR_BPF, session->base.pid);
		exit_code = ml_session_run(session, &ops);
	}
	if (session->bpf.object)
		ml_bpf_destroy(&session->bpf);
	ml_session_close(&session->base);
	ml_sideband_close(session->sideband);
	ml_frames_destroy(session->frames);
	ml_process_set_destroy(&session->processes);
	ml_regions_destroy(&session->regions);
	ml_long_stacks_destroy(&session->long_stacks);
	free(session);
	return exit_code;
}
