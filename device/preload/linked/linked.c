// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include "preload/attach.h"
#include "preload/freestanding/bytes.h"
#include "preload/freestanding/clock.h"
#include "preload/freestanding/lock.h"
#include "preload/stacks/frame_resolve.h"
#include "preload/include/memleak.h"
#include "preload/stacks/maps.h"
#include "preload/entries/originals.h"
#include "preload/recorder/connect.h"
#include "preload/recorder/recorder.h"
#include "preload/linked/recording.h"
#include "preload/linked/text.h"
#include "preload/freestanding/syscalls.h"

#define API __attribute__((visibility("default")))

#define SAMPLE_BYTES 65536u
#define MAX_LIVE 65536u
#define N_THREADS 64u
#define N_KEYS (1u << 15)
#define RING_BYTES (512u << 10)
#define MARKS 64u
#define MARK_NAME_BYTES 64u
#define COMMAND_BYTES 4096u
#define CLOCK_REALTIME 0
#define AT_PAGESZ 6 /* getauxval(3) */

extern unsigned long getauxval(unsigned long) __attribute__((weak));

struct mark {
	char name[MARK_NAME_BYTES];
	ml_u64 timestamp_ns;
	ml_u64 held_bytes, held_objects; /* sampled ones */
	ml_u32 is_whole; /* written last */
};

static struct {
	struct ml_settings settings;
	ml_u32 pid; /* of the process that began to record; 0 = none */
	int is_recording;
	struct ml_lock lock; /* held while one thread begins, ends or writes */
	ml_u32 n_marks;
	struct mark marks[MARKS];
	struct ml_recording recording;
} linked;

/* ---- beginning and end -------------------------------------------------------------------------------- */

/* A segment as connect.c makes it, in private memory. */
static int make_segment(struct ml_view *view)
{
	long base;

	if (ml_view_set(view, NULL, &linked.settings))
		return -EINVAL;
	base = ML_MMAP(0, view->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
	if (ml_is_error(base))
		return (int)base;
	ml_connect_begin(view, (void *)base, &linked.settings);
	return 0;
}

static struct ml_settings settings_from(const struct memleak_options *options)
{
	ml_u64 sample_bytes = options->sample_bytes ? options->sample_bytes : SAMPLE_BYTES;

	return (struct ml_settings){
		.sample_bytes = sample_bytes == MEMLEAK_EVERY_ALLOCATION ? 0 : sample_bytes,
		.max_size = ~0ull,
		.max_live = options->max_live ? options->max_live : MAX_LIVE,
		/* No stack bytes in a file that may be sent elsewhere. On 32-bit arm no CFI is mapped. */
		.flags = ML_SETTING_NO_AGENT | ML_SETTING_NO_STACK | ML_SETTING_FRAME_CHAIN |
			 (sizeof(void *) == 8 ? ML_SETTING_CHAIN_BY_CFI : 0),
		.n_threads = N_THREADS,
		.n_keys = N_KEYS,
		.ring_bytes = RING_BYTES,
	};
}

/* -ECHILD in a forked child, whose data are a copy of its parent's. */
static int check_process(void)
{
	return linked.pid && linked.pid != (ml_u32)ML_SYSCALL0(getpid) ? -ECHILD : 0;
}

/* Takes the lock. 0 or -errno, with which the caller's call ends. */
static int begin_call(void)
{
	int result = check_process();

	return result ? result : ml_lock_try(&linked.lock) ? 0 : -EBUSY;
}

static int join(void)
{
	int result;

	ml_connect_without_agent = make_segment;
	if (ml_originals_are_interposed) {
		ml_maps_forget(ML_STRAGGLERS_MS);
		ml_frame_resolve_forget(ML_STRAGGLERS_MS);
		result = ml_recorder_join();
		if (!result)
			ml_recorder_turn_on();
	} else {
		result = ml_attach_own();
	}
	ml_connect_without_agent = NULL;
	return result > 0 ? -ENOEXEC : result;
}

static int start(const struct memleak_options *options)
{
	int result;

	if (linked.is_recording || ml_recorder_is_on())
		return -EBUSY;
	if (linked.pid)
		ml_recorder_retire();
	linked.settings = settings_from(options);
	linked.n_marks = 0;
	for (ml_u32 i = 0; i < MARKS; i++)
		linked.marks[i].is_whole = 0;
	result = join();
	linked.is_recording = !result;
	linked.pid = result ? linked.pid : (ml_u32)ML_SYSCALL0(getpid);
	return result;
}

API int memleak_start(const struct memleak_options *options)
{
	struct memleak_options given = { .struct_bytes = sizeof(given) };
	int result;

	if (options && (options->struct_bytes < sizeof(ml_u64) || options->struct_bytes > 4096))
		return -EINVAL;
	if (options)
		ml_copy(&given, options, options->struct_bytes < sizeof(given) ? options->struct_bytes : sizeof(given));
	result = begin_call();
	return result ? result : ml_lock_release(&linked.lock, start(&given));
}

API int memleak_stop(void)
{
	int result = begin_call();

	if (result)
		return result;
	if (!linked.is_recording)
		return ml_lock_release(&linked.lock, -ESRCH);
	linked.is_recording = 0;
	if (ml_originals_are_interposed)
		ml_recorder_turn_off();
	else
		ml_attach_leave_own();
	return ml_lock_release(&linked.lock, 0);
}

/* ---- marks -------------------------------------------------------------------------------------------- */

API int memleak_mark(const char *name)
{
	int result = check_process();
	struct ml_status status;
	struct mark *mark;
	ml_u32 number;

	if (result || !linked.is_recording)
		return result ? result : -ESRCH;
	number = __atomic_fetch_add(&linked.n_marks, 1, __ATOMIC_RELAXED);
	if (number >= MARKS) {
		__atomic_store_n(&linked.n_marks, MARKS, __ATOMIC_RELAXED);
		return -ENOSPC;
	}
	mark = &linked.marks[number];
	status = ml_recording_count(ml_view_in_force());
	for (ml_u32 i = 0; i < MARK_NAME_BYTES; i++)
		mark->name[i] = (i && !mark->name[i - 1]) || i == MARK_NAME_BYTES - 1 ? '\0' : name[i];
	mark->timestamp_ns = status.timestamp_ns;
	mark->held_bytes = status.alloc_bytes - status.free_bytes;
	mark->held_objects = status.alloc_objects - status.free_objects;
	__atomic_store_n(&mark->is_whole, 1, __ATOMIC_RELEASE);
	return 0;
}

static void write_mark(struct ml_recording *recording, const struct mark *mark, ml_u64 start_ns)
{
	char bytes[256];
	struct ml_text text = { bytes, 0, sizeof(bytes) };
	ml_u64 rest, since_ms = ml_text_divide(mark->timestamp_ns - start_ns, 1000000, &rest);

	ml_text_add(&text, "mark ");
	ml_text_add(&text, mark->name);
	ml_text_add(&text, " after ");
	ml_text_add_number(&text, since_ms);
	ml_text_add(&text, " ms: ");
	ml_text_add_number(&text, mark->held_bytes);
	ml_text_add(&text, " bytes in ");
	ml_text_add_number(&text, mark->held_objects);
	ml_text_add(&text, linked.settings.sample_bytes ? " sampled blocks held" : " blocks held");
	ml_recording_write(recording, ML_BLOCK_LOG, &(struct iovec){ bytes, text.fill }, 1);
}

/* ---- the file ----------------------------------------------------------------------------------------- */

static void write_hello(struct ml_recording *recording, const struct ml_view *view)
{
	struct ml_hello hello = {
		.wire_version = ML_WIRE_VERSION,
#if defined(__x86_64__)
		.arch = ML_ARCH_X86_64,
#elif defined(__aarch64__)
		.arch = ML_ARCH_ARM64,
#else
		.arch = ML_ARCH_ARM32,
#endif
		.collector = ML_COLLECTOR_LINKED,
		.page_bytes = getauxval ? (ml_u32)getauxval(AT_PAGESZ) : 4096,
		.pid = view->segment->pid,
		.monotonic_ns = view->segment->start_ns,
	};

	hello.realtime_ns = ml_clock_ns(CLOCK_REALTIME) - (ml_clock_exact_ns() - hello.monotonic_ns);
	ml_recording_write(recording, ML_BLOCK_HELLO, &(struct iovec){ &hello, sizeof(hello) }, 1);
}

/* The words of /proc/self/cmdline, separated by spaces. */
static size_t read_command(char *to, size_t room)
{
	long n = ml_read_file("/proc/self/cmdline", to, room);

	while (n > 0 && !to[n - 1])
		n--;
	for (long i = 0; i < n; i++)
		to[i] = to[i] ? to[i] : ' ';
	return n > 0 ? (size_t)n : 0;
}

static void write_session(struct ml_recording *recording, const struct ml_view *view)
{
	char *command = (char *)recording->scratch;
	struct ml_text text = { command + COMMAND_BYTES, 0, ML_RECORDING_SCRATCH_BYTES - COMMAND_BYTES };

	ml_text_add(&text, "{\"tracer\":\"linked\",\"attached\":true,\"unwind\":");
	ml_text_add(&text, view->settings.flags & ML_SETTING_CHAIN_BY_CFI ? "\"cfi\"" : "\"fp\"");
	ml_text_add(&text, ",\"command\":");
	ml_text_add_quoted(&text, command, read_command(command, COMMAND_BYTES));
	ml_text_add(&text, ",\"pid\":");
	ml_text_add_number(&text, view->segment->pid);
	ml_text_add(&text, ",\"sample_bytes\":");
	ml_text_add_number(&text, view->settings.sample_bytes);
	ml_text_add(&text, "}");
	ml_recording_write(recording, ML_BLOCK_SESSION, &(struct iovec){ text.bytes, text.fill }, 1);
}

static void write_end(struct ml_recording *recording, const struct ml_view *view)
{
	struct ml_status status = ml_recording_count(view);
	struct ml_end end = { ML_REASON_STOPPED, -1, status.timestamp_ns };

	ml_recording_write(recording, ML_BLOCK_STATUS, &(struct iovec){ &status, sizeof(status) }, 1);
	ml_recording_write(recording, ML_BLOCK_END, &(struct iovec){ &end, sizeof(end) }, 1);
}

static int write_all(const char *path)
{
	struct ml_recording *recording = &linked.recording;
	const struct ml_view *view = ml_view_in_force();
	int result = ml_recording_create(recording, path);

	if (result)
		return result;
	write_hello(recording, view);
	write_session(recording, view);
	for (ml_u32 i = 0; i < linked.n_marks && i < MARKS; i++)
		if (__atomic_load_n(&linked.marks[i].is_whole, __ATOMIC_ACQUIRE))
			write_mark(recording, &linked.marks[i], view->segment->start_ns);
	ml_recording_modules(recording, view);
	ml_recording_hooked(recording, view);
	ml_recording_rows(recording, view);
	ml_recording_await_calls(view);
	ml_recording_evidence(recording, view); /* after the blocks, to include the stacks of those that came meanwhile */
	write_end(recording, view);
	return ml_recording_finish(recording, path);
}

API int memleak_snapshot(const char *path)
{
	int result = begin_call();

	if (result)
		return result;
	return ml_lock_release(&linked.lock, !path ? -EINVAL : linked.pid ? write_all(path) : -ESRCH);
}
