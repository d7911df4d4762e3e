// SPDX-License-Identifier: Apache-2.0
#include "agent/inject/inject.h"

#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"
#include "agent/inject/library.h"
#include "agent/inject/thread_choice.h"
#include "agent/ptrace/call.h"
#include "agent/process/process_maps.h"
#include "agent/ptrace/threads.h"

#define SEARCH_NS (2000ull * 1000 * 1000)
#define STOP_TIMEOUT_MS 1000 /* for machines with few processors */
#define CALL_TIMEOUT_MS 10000
#define PAUSE_US 3000
#define PIECE_BYTES (256u << 10)
#define CODE_BYTES_MAX (16u << 20) /* of one mapping: libc has 2 MiB, programs up to hundreds */

struct work {
	const struct ml_injection *injection;
	struct ml_injected *injected;
	struct ml_target_objects objects;
	struct ml_ptrace_threads threads;
	struct ml_ptrace_thread *chosen;
	struct ml_ptrace_state state;
	struct ml_ptrace_code code;
	enum ml_inject_verdict last_verdict;
	bool needs_loader; /* the library is not loaded yet: dlopen() takes the linker's lock */
};

/* ---- code that calls need ------------------------------------------------------------------------------- */

struct search {
	ml_u32 pid;
	ml_u64 within; /* only the mapping of this address; 0 = all */
	struct ml_ptrace_code found;
	ml_u8 *piece;
};

static void match(ml_u64 *found, ml_u64 start, const ml_u8 *piece, size_t bytes, const ml_u8 *wanted, size_t n_wanted)
{
	const ml_u8 *hit = *found || !n_wanted ? NULL : memmem(piece, bytes, wanted, n_wanted);

	if (hit)
		*found = start + (ml_u64)(hit - piece);
}

static bool is_done(const struct ml_ptrace_code *found)
{
	return found->trampoline && (found->keeps_result || !ml_ptrace_n_keeper_bytes);
}

static void search_mapping(struct search *search, ml_u64 start, ml_u64 end)
{
	size_t step = PIECE_BYTES - ml_ptrace_n_trampoline_bytes;

	if (search->within && search->within - start >= end - start)
		return;
	if (end - start > CODE_BYTES_MAX)
		end = start + CODE_BYTES_MAX;
	for (; start < end && !is_done(&search->found); start += step) {
		size_t bytes = end - start < PIECE_BYTES ? (size_t)(end - start) : PIECE_BYTES;

		if (ml_target_read(search->pid, start, search->piece, bytes))
			return;
		match(&search->found.trampoline, start, search->piece, bytes, ml_ptrace_trampoline_bytes,
		      ml_ptrace_n_trampoline_bytes);
		match(&search->found.keeps_result, start, search->piece, bytes, ml_ptrace_keeper_bytes,
		      ml_ptrace_n_keeper_bytes);
	}
}

static void search_all(struct search *search, const char *maps)
{
	struct ml_maps_line line;

	for (const char *at = maps; search->piece && (at = ml_process_maps_code(at, &line));)
		search_mapping(search, line.start, line.end);
}

/*
 * Finds code in the process that calls need; 0: none. libc is searched first: dlopen() loads into the namespace of the code that it
 * returns to (dlmopen(3)), and another namespace may have another libc.
 */
static struct ml_ptrace_code find_code(const struct ml_target_objects *objects)
{
	struct search search = { .pid = objects->pid,
				 .within = ml_inject_function(objects, "sigaction"),
				 .piece = malloc(PIECE_BYTES) };
	char *maps = ml_process_maps_read(objects->pid, NULL);

	if (search.within)
		search_all(&search, maps);
	search.within = 0;
	search_all(&search, maps); /* ends at once if all is found */
	free(search.piece);
	free(maps);
	return search.found;
}

/* Called functions are those of the target's own libraries, which may differ from ours. */
static int prepare(struct work *work)
{
	struct ml_refusal *refusal = &work->injected->refusal;
	int pid = work->injection->pid;

	if (ml_inject_check(pid, refusal) || (work->injection->argument && ml_inject_check_descriptors(pid, refusal)))
		return -1;
	if (ml_target_objects_read(&work->objects, (ml_u32)pid))
		return ml_refuse(refusal,
				 errno == E2BIG ?
					 "the lists of libraries of process %d are too large to be read (use --tracer bpf)" :
					 "the memory of process %d cannot be read (run as its user, or as root)",
				 pid);
	if (ml_inject_can_load(&work->objects, work->injection->library, refusal))
		return -1;
	work->needs_loader = !ml_inject_loaded(&work->objects, work->injection->library, work->injection->function);
	work->code = find_code(&work->objects);
	if (!work->code.trampoline)
		return ml_refuse(refusal, "process %d has no return from signal handlers that could be used (use --tracer bpf)",
				 pid);
	return 0;
}

/* ---- the thread ---------------------------------------------------------------------------------------- */

/* A thread that waits for the linker's lock would be borrowed until a constructor of the target returns. */
static bool is_any_loading(struct work *work, struct ml_inject_choice *choice)
{
	ml_ptrace_registers registers;

	for (size_t i = 0; i < work->threads.n && work->needs_loader; i++) {
		struct ml_ptrace_thread *thread = &work->threads.threads[i];

		if (thread->is_stopped &&
		    ml_ptrace_read_set(thread->tid, NT_PRSTATUS, &registers, sizeof(registers)) == (ssize_t)sizeof(registers) &&
		    ml_inject_choice_is_loading(choice, &registers))
			return true;
	}
	return false;
}

static struct ml_ptrace_thread *find_good(struct work *work, struct ml_inject_choice *choice)
{
	ml_inject_choice_renew(choice);
	for (size_t i = 0; i < work->threads.n; i++) {
		struct ml_ptrace_thread *thread = &work->threads.threads[i];

		if (!thread->is_stopped || ml_ptrace_state_read(thread->tid, &work->state))
			continue;
		work->last_verdict = ml_inject_choice_judge(choice, thread->tid, &work->state.registers);
		if (work->last_verdict == ML_THREAD_GOOD && is_any_loading(work, choice))
			work->last_verdict = ML_THREAD_LOADING;
		if (work->last_verdict == ML_THREAD_LOADING)
			return NULL;
		if (work->last_verdict == ML_THREAD_GOOD)
			return thread;
	}
	return NULL;
}

/* Stops all threads until one is suitable, for 2 s at most. All others go on. Another tracer's moment is waited for. */
static int choose(struct work *work, struct ml_inject_choice *choice)
{
	ml_u64 deadline_ns = ml_clock_ns() + SEARCH_NS;
	int error;

	while (!work->chosen) {
		error = ml_ptrace_stop_all(&work->threads, work->injection->pid, STOP_TIMEOUT_MS) ? errno : 0;
		if (!error) {
			work->injected->n_attempts++;
			work->chosen = find_good(work, choice);
		}
		ml_ptrace_let_others_go(&work->threads, work->chosen);
		if (error && (error != EPERM || !ml_inject_is_traced(work->injection->pid) || ml_clock_ns() > deadline_ns))
			return ml_inject_refuse_stop(work->injection->pid, error, &work->injected->refusal);
		ml_stop_times_add(&work->injected->stops, ML_STOPPED_ALL, work->threads.longest_stop_ns,
				  (ml_u32)work->threads.n);
		if (!work->chosen && ml_clock_ns() > deadline_ns)
			return ml_refuse(
				&work->injected->refusal,
				"no thread of process %d could be borrowed within 2 s: the last one was %s (try again, or "
				"use --tracer bpf)",
				work->injection->pid, ml_inject_verdict_text(work->last_verdict));
		if (!work->chosen)
			usleep(PAUSE_US);
	}
	return 0;
}

/* ---- the calls ----------------------------------------------------------------------------------------- */

static int call_function(struct work *work, struct ml_inject_caller *caller)
{
	const struct ml_injection *injection = work->injection;
	struct ml_refusal *refusal = &work->injected->refusal;
	const struct ml_target_object *library = ml_inject_loaded(&work->objects, injection->library, injection->function);
	struct ml_ptrace_request request = { .code = work->code, .text = injection->argument, .patience_ms = CALL_TIMEOUT_MS };
	struct ml_ptrace_called called;

	request.function = ml_target_function(work->objects.pid, library, injection->function);
	if (!request.function)
		return ml_refuse(refusal, "%s does not define %s() (use the agent and the shim of one release)", library->path,
				 injection->function);
	if (ml_inject_call(caller, injection->function, &request, &called, refusal))
		return -1;
	work->injected->result = called.has_result ? (ml_u64)(ml_s32)called.result : 0;
	return 0;
}

static int make_calls(struct work *work)
{
	const struct ml_injection *injection = work->injection;
	struct ml_inject_caller caller = { .pid = injection->pid,
					   .tid = work->chosen->tid,
					   .state = &work->state,
					   .code = work->code,
					   .objects = &work->objects };
	int failed = ml_inject_load(&caller, injection->library, injection->function, &work->injected->refusal);

	if (!failed)
		failed = call_function(work, &caller);
	if (caller.is_lost)
		work->chosen = NULL;
	return failed;
}

static void let_go(struct work *work)
{
	ml_u64 asked_ns;

	if (!work->chosen)
		return;
	asked_ns = work->chosen->asked_ns;
	ml_ptrace_state_write(work->chosen->tid, &work->state);
	ml_ptrace_let_go(&work->threads, work->chosen);
	ml_stop_times_add(&work->injected->stops, ML_STOPPED_CALLER, ml_clock_ns() - asked_ns, 1);
}

static int run(struct work *work)
{
	struct ml_inject_choice *choice;
	int failed;

	if (prepare(work))
		return -1;
	choice = ml_inject_choice_create(&work->objects);
	if (!choice)
		return ml_refuse(&work->injected->refusal, "out of memory (free some)");
	failed = choose(work, choice);
	ml_inject_choice_destroy(choice);
	if (failed)
		return -1;
	failed = make_calls(work);
	let_go(work);
	return failed ? -1 : 0;
}

int ml_inject(const struct ml_injection *injection, struct ml_injected *injected)
{
	static struct work work;
	int failed;

	memset(injected, 0, sizeof(*injected));
	work = (struct work){ .injection = injection, .injected = injected };
	failed = ML_HAS_PTRACE_CALLS ?
			 run(&work) :
			 ml_refuse(&injected->refusal, "32-bit processes cannot be attached to (use a 64-bit build)");
	injected->n_threads = (ml_u32)work.threads.n;
	ml_ptrace_free(&work.threads);
	ml_target_objects_free(&work.objects);
	return failed;
}

int ml_inject_command(char *const *words, int n_words)
{
	struct ml_injection injection = {
		.pid = atoi(words[0]), .library = words[1], .function = words[2], .argument = n_words > 3 ? words[3] : NULL
	};
	struct ml_injected injected;

	if (ml_inject(&injection, &injected)) {
		fprintf(stderr, "%s\n", injected.refusal.text);
		return 4;
	}
	printf("%d %u %u\n", (int)injected.result, injected.n_threads, injected.n_attempts);
	for (ml_u32 i = 0; i < injected.stops.n; i++) {
		const struct ml_stop *stop = &injected.stops.stops[i];

		printf("stop %u %llu %llu %u\n", stop->stopped, (unsigned long long)stop->timestamp_ns,
		       (unsigned long long)stop->duration_ns, stop->n_threads);
	}
	return 0;
}
