// SPDX-License-Identifier: Apache-2.0
#include "preload/recorder/evidence.h"

#include "preload/freestanding/bytes.h"
#include "preload/stacks/frame_chain.h"
#include "preload/stacks/python_frames.h"
#include "preload/segment/ring.h"
#include "preload/freestanding/syscalls.h"
#include "preload/segment/thread.h"

/* An exact key is verified each time its number of allocations has grown by this factor. */
#define EXACT_STEP 32

#define PAGE_BYTES 4096u /* the smallest page size */

/* ---- when it is due ----------------------------------------------------------------------------------- */

/*
 * Exact keys send evidence with their first block, when the agent asks, and rarely to verify that they are exact.
 * Others send it with their first block, whenever three times as many blocks are live, and at random before the number
 * of allocations has doubled, if the stack differs from the last one sent. That finds keys that cover two stacks. (On
 * jq, sqlite3, git and python3, keys of 4 KiB merge the stacks of at most 0.04 % of the blocks.)
 */
static int is_due(const struct ml_view *view, const struct ml_key *key, ml_u32 *flags)
{
	ml_u64 allocated = __atomic_load_n(&key->alloc_objects, __ATOMIC_RELAXED);
	ml_u64 live = allocated - __atomic_load_n(&key->free_objects, __ATOMIC_RELAXED);

	*flags = 0;
	if (view->settings.flags & ML_SETTING_NO_EVIDENCE)
		return 0;
	if (live >= __atomic_load_n(&key->next_due, __ATOMIC_RELAXED))
		return 1;
	*flags = ML_EVIDENCE_VERIFY;
	if (view->settings.flags & ML_SETTING_NO_STACK) /* the key covers everything that could be sent */
		return (view->settings.flags & ML_SETTING_EVERY_STACK) != 0;
	return allocated >= __atomic_load_n(&key->next_verify, __ATOMIC_RELAXED) ||
	       (view->settings.flags & ML_SETTING_EVERY_STACK);
}

static int is_exact(const struct ml_key *key)
{
	return (key->key & ML_KEY_IS_EXACT) != 0;
}

static void set_next_verify(struct ml_thread *thread, struct ml_key *key)
{
	ml_u64 allocated = __atomic_load_n(&key->alloc_objects, __ATOMIC_RELAXED);
	ml_u64 step = is_exact(key) ? EXACT_STEP * (allocated + EXACT_STEP) : allocated / 2 + 1;

	__atomic_store_n(&key->next_verify, allocated + step + ((ml_thread_random(thread) >> 48) * step >> 16),
			 __ATOMIC_RELAXED);
}

static void set_next_due(struct ml_thread *thread, struct ml_key *key)
{
	ml_u64 allocated = __atomic_load_n(&key->alloc_objects, __ATOMIC_RELAXED);
	ml_u64 live = allocated - __atomic_load_n(&key->free_objects, __ATOMIC_RELAXED);

	if (live >= ml_read(&key->next_due))
		__atomic_store_n(&key->next_due, is_exact(key) ? ~0ull : 3 * live + 1, __ATOMIC_SEQ_CST);
	set_next_verify(thread, key);
}

/* ---- sending ------------------------------------------------------------------------------------------ */

static ml_u32 copy_stack(void *to, ml_u64 from, ml_u32 bytes, const struct ml_caller *caller)
{
	long n;

	if (from + bytes <= caller->readable_end) {
		ml_copy(to, (const void *)(unsigned long)from, bytes);
		return bytes;
	}
	n = ml_read_memory(to, from, bytes);
	return n > 0 ? (ml_u32)n & ~7u : 0;
}

struct slice {
	ml_u64 from;
	ml_u64 end; /* of the stack, as far as known */
	ml_u32 wanted;
};

static struct slice slice_of(const struct ml_view *view, const struct ml_caller *caller)
{
	struct slice slice = { caller->stack_pointer & ~7ull, caller->stack_end ? caller->stack_end : caller->readable_end, 0 };
	ml_u64 bytes = slice.end - slice.from;

	if (view->settings.flags & ML_SETTING_NO_STACK)
		return slice;
	slice.wanted = (ml_u32)(bytes < view->settings.stack_bytes ? bytes : view->settings.stack_bytes) & ~7u;
	return slice;
}

static int was_sent_last(const struct ml_view *view, const struct ml_evidence_call *call)
{
	struct slice slice = slice_of(view, call->caller);

	return !call->caller->interrupted && slice.from + slice.wanted <= call->caller->readable_end &&
	       ml_stack_hash(ml_view_code_map(view), (const void *)(unsigned long)slice.from, slice.wanted) ==
		       __atomic_load_n(&view->keys[call->block->key_index].sent_stack, __ATOMIC_RELAXED);
}

/* The walk of an exact key has read every word that unwinding needs. To verify a key the whole stack is sent. */
static int is_sparse(const struct ml_view *view, const struct ml_evidence_call *call, ml_u32 flags)
{
	return !(view->settings.flags & ML_SETTING_NO_STACK) && call->memo && call->memo->is_exact &&
	       call->memo->n_offsets <= ML_MEMO_OFFSETS && !(flags & ML_EVIDENCE_VERIFY) &&
	       !(view->settings.flags & ML_SETTING_EVERY_STACK) && call->memo->reach_bytes <= view->settings.stack_bytes;
}

/* Stored behind the registers; returns the number of bytes. */
static ml_u32 store_sparse(const struct ml_evidence_call *call, struct ml_evidence *record, void *to)
{
	const struct ml_memo *memo = call->memo;
	const ml_u64 *stack = (const ml_u64 *)(unsigned long)call->caller->stack_pointer;
	struct ml_sparse_stack *sparse = to;

	sparse->n_words = memo->n_offsets;
	for (ml_u32 i = 0; i < memo->n_offsets; i++) {
		sparse->words[i] = stack[memo->offsets[i]];
		ml_sparse_stack_offsets(sparse)[i] = memo->offsets[i];
	}
	record->stack_bytes = memo->reach_bytes;
	record->flags |= ML_EVIDENCE_STACK_SPARSE;
	return ml_sparse_stack_bytes(memo->n_offsets);
}

static ml_u32 store_slice(const struct ml_evidence_call *call, const struct slice *slice, struct ml_evidence *record, void *to)
{
	record->stack_bytes = copy_stack(to, slice->from, slice->wanted, call->caller);
	if (call->caller->stack_end && record->stack_bytes == slice->end - slice->from)
		record->flags |= ML_EVIDENCE_STACK_WHOLE;
	if (!record->stack_bytes && slice->wanted)
		record->flags |= ML_EVIDENCE_STACK_FAULT;
	return record->stack_bytes;
}

/* The thread's rules may be used only during its own look-up, not in a handler. */
static ml_u32 store_walk(const struct ml_view *view, struct ml_thread *thread, const struct ml_evidence_call *call,
			 struct ml_evidence *record, struct ml_frame_chain *chain)
{
	struct ml_walk walk = { .hash = 0 };

	chain->n_frames = 0;
	ml_frame_walk(view, ml_view_code_map(view), call->caller, &walk,
		      &(struct ml_notes){ .thread = call->memo ? thread : NULL, .chain = chain });
	record->flags |= ML_EVIDENCE_CHAIN_IS_CFI;
	return ml_frame_chain_bytes(chain->n_frames);
}

/* Stored behind the stack; returns the number of bytes. */
static ml_u32 store_chain(const struct ml_view *view, struct ml_thread *thread, const struct ml_evidence_call *call,
			  struct ml_evidence *record, void *to)
{
	ml_u64 frame_pointer = ML_CHAIN_POINTER(call->registers), address;
	struct ml_chain chain = ml_chain_begin(call->caller, frame_pointer, ml_view_code_map(view)->signature_mask, NULL);
	struct ml_frame_chain *stored = to;

	if (!(view->settings.flags & ML_SETTING_FRAME_CHAIN))
		return 0;
	record->flags |= ML_EVIDENCE_FRAME_CHAIN;
	if (view->settings.flags & ML_SETTING_CHAIN_BY_CFI)
		return store_walk(view, thread, call, record, stored);
	while ((address = ml_chain_next(&chain)))
		stored->addresses[chain.n_frames - 1] = address;
	stored->n_frames = chain.n_frames;
	stored->end = chain.end;
	return ml_frame_chain_bytes(chain.n_frames);
}

static ml_u32 chain_room(const struct ml_view *view)
{
	return view->settings.flags & ML_SETTING_FRAME_CHAIN ? ml_frame_chain_bytes(ML_FRAME_CHAIN_MAX) : 0;
}

/* For slices that are too short. */
static int is_extended(const struct ml_view *view, const struct slice *slice)
{
	return view->settings.flags & ML_SETTING_EXTEND_STACKS && slice->wanted && slice->from + slice->wanted < slice->end;
}

/*
 * Stores the words from `begin` to `end` that point to code or into this range, at most ML_RING_ABOVE_WORDS, and adds
 * them to *hash. Each page is read to where its words go. Returns the number of bytes, 0 if there are no such words.
 */
static ml_u32 store_words_above(const struct ml_code_map *map, const struct ml_caller *caller, ml_u64 begin, ml_u64 end,
				struct ml_stack_above *to, ml_u64 *hash)
{
	ml_u32 *offsets = (ml_u32 *)&to->words[ML_RING_ABOVE_WORDS]; /* moved once their number is known */
	ml_u32 n = 0, bytes;
	ml_u64 at;

	if (end - begin > ML_ABOVE_BYTES_MAX)
		end = begin + ML_ABOVE_BYTES_MAX;
	for (at = begin; at < end && n + PAGE_BYTES / 8 <= ML_RING_ABOVE_WORDS; at += bytes) {
		const ml_u64 *page = &to->words[n];

		bytes = PAGE_BYTES - (ml_u32)(at & (PAGE_BYTES - 1));
		bytes = copy_stack(&to->words[n], at, bytes < end - at ? bytes : (ml_u32)(end - at), caller);
		if (!bytes)
			break;
		for (ml_u32 i = 0; i < bytes / 8; i++) {
			ml_u64 word = page[i], offset = (at - begin) / 8 + i;

			if (word - begin >= end - begin && !ml_code_map_has(map, word))
				continue;
			to->words[n] = word;
			offsets[n++] = (ml_u32)offset;
			*hash = ml_stack_mix(*hash, word + (offset << 44));
		}
	}
	if (!n)
		return 0;
	to->reach_bytes = (ml_u32)(at - begin);
	to->n_words = n;
	ml_copy(ml_stack_above_offsets(to), offsets, n * sizeof(*offsets));
	if (n % 2)
		ml_stack_above_offsets(to)[n] = 0;
	return ml_stack_above_bytes(n);
}

/* Stored behind the chain; returns the number of bytes. */
static ml_u32 store_above(const struct ml_view *view, const struct ml_caller *caller, const struct slice *slice,
			  struct ml_ring_evidence *room, void *to)
{
	ml_u32 bytes = store_words_above(ml_view_code_map(view), caller, slice->from + slice->wanted, slice->end, to,
					 &room->stack_hash);

	if (bytes)
		room->record.flags |= ML_EVIDENCE_STACK_ABOVE;
	return bytes;
}

/* Read into the thread's scratch memory, so that no more room is reserved than they need. */
static const struct ml_python_frames *find_python(const struct ml_view *view, struct ml_thread *thread,
						  const struct ml_caller *caller)
{
	struct ml_python_frames *frames = (struct ml_python_frames *)thread->scratch;

	_Static_assert(sizeof(*frames) + ML_PYTHON_FRAMES_MAX * sizeof(frames->frames[0]) <= sizeof(thread->scratch), "room");
	frames->n_frames = 0;
	if (caller->python)
		ml_python_store(view, thread, caller, frames);
	return frames;
}

/* Stored behind everything else; returns the number of bytes. */
static ml_u32 store_python(const struct ml_python_frames *frames, struct ml_evidence *record)
{
	ml_u32 bytes = ml_python_frames_bytes(frames->n_frames);

	if (!frames->n_frames)
		return 0;
	record->flags |= ML_EVIDENCE_PYTHON_FRAMES;
	ml_copy((char *)record + record->record_bytes, frames, bytes);
	return bytes;
}

/* Of what a handler has interrupted; none without the frame that leads there, at the end of the handler's own slice. */
static struct slice interrupted_slice(const struct ml_view *view, const struct ml_caller *caller, const struct slice *own)
{
	if (!caller->interrupted || !caller->interrupted->caller.stack_pointer || !own->wanted ||
	    own->from + own->wanted != own->end)
		return (struct slice){ .wanted = 0 };
	return slice_of(view, &caller->interrupted->caller);
}

/* Stored behind the chain; returns the number of bytes. */
static ml_u32 store_interrupted(const struct ml_view *view, const struct ml_caller *caller, const struct slice *slice,
				struct ml_ring_evidence *room, struct ml_interrupted_stack *to)
{
	ml_u32 bytes = copy_stack(to + 1, slice->from, slice->wanted, &caller->interrupted->caller);

	if (!bytes)
		return 0;
	*to = (struct ml_interrupted_stack){ .stack_address = slice->from, .stack_bytes = bytes };
	room->stack_hash = ml_stack_mix(room->stack_hash, ml_stack_hash(ml_view_code_map(view), to + 1, bytes));
	room->record.flags |= ML_EVIDENCE_INTERRUPTED;
	return (ml_u32)sizeof(*to) + bytes;
}

static void send(const struct ml_view *view, struct ml_thread *thread, const struct ml_evidence_call *call, ml_u32 flags)
{
	int sparse = is_sparse(view, call, flags);
	struct slice slice = slice_of(view, call->caller), second = interrupted_slice(view, call->caller, &slice);
	ml_u32 head_bytes = sizeof(struct ml_evidence) + ML_N_REGISTERS * sizeof(ml_u64);
	ml_u32 stack_bytes = sparse ? ml_sparse_stack_bytes(call->memo->n_offsets) : slice.wanted;
	int extended = !sparse && is_extended(view, &slice);
	ml_u32 second_bytes = second.wanted ? (ml_u32)sizeof(struct ml_interrupted_stack) + second.wanted : 0;
	struct ml_key *key = &view->keys[call->block->key_index];
	const struct ml_python_frames *python = find_python(view, thread, call->caller);
	struct ml_ring_evidence *room =
		ml_ring_reserve_patiently(view, thread,
					  sizeof(room->stack_hash) + head_bytes + stack_bytes + chain_room(view) +
						  (extended ? ML_STACK_ABOVE_ROOM : second_bytes) +
						  ml_python_frames_bytes(python->n_frames));
	struct ml_evidence *record;
	void *stack;

	if (!room) {
		__atomic_fetch_add(&view->segment->lost[ML_LOST_RING_FULL], 1, __ATOMIC_RELAXED);
		return;
	}
	record = &room->record;
	*record = (struct ml_evidence){
		.flags = (ml_u16)(flags | ML_EVIDENCE_AT_RETURN),
		.function = (ml_u16)call->function,
		.sequence = call->block->sequence,
		.timestamp_ns = call->block->timestamp_ns,
		.key = call->key,
		.address = call->address,
		.size = call->block->size,
		.pid = view->segment->pid,
		.tid = ml_thread_tid(view, thread),
		.n_registers = ML_N_REGISTERS,
		.stack_address = slice.from,
		.registers_known = ML_REGISTERS_KNOWN,
	};
	ml_registers_store(call->registers, ml_registers_stack_pointer(call->registers), (ml_u64 *)(record + 1));
	stack = (char *)record + head_bytes;
	stack_bytes = sparse ? store_sparse(call, record, stack) : store_slice(call, &slice, record, stack);
	record->record_bytes = head_bytes + stack_bytes + store_chain(view, thread, call, record, (char *)stack + stack_bytes);
	room->stack_hash = sparse || !slice.wanted ? call->key : ml_stack_hash(ml_view_code_map(view), stack, stack_bytes);
	if (record->flags & ML_EVIDENCE_STACK_FAULT)
		__atomic_fetch_add(&view->segment->lost[ML_LOST_STACK_FAULT], 1, __ATOMIC_RELAXED);
	__atomic_store_n(&key->sent_stack, room->stack_hash, __ATOMIC_RELAXED);
	if (extended)
		record->record_bytes += store_above(view, call->caller, &slice, room, (char *)record + record->record_bytes);
	else if (second.wanted)
		record->record_bytes +=
			store_interrupted(view, call->caller, &second, room, (void *)((char *)record + record->record_bytes));
	record->record_bytes += store_python(python, record);
	/* Before the agent can see the record: if it drops it, its request for another comes later. */
	set_next_due(thread, key);
	ml_ring_commit(view, thread, ML_RING_EVIDENCE, (ml_u32)sizeof(room->stack_hash) + record->record_bytes);
}

void ml_evidence_send(const struct ml_view *view, struct ml_thread *thread, const struct ml_evidence_call *call, ml_u32 flags)
{
	if (!ml_thread_enter(
		    view, thread)) { /* in a signal handler that interrupted this function; the key's next call tries again */
		__atomic_fetch_add(&view->segment->lost[ML_LOST_RING_FULL], 1, __ATOMIC_RELAXED);
		return;
	}
	if (!ml_thread_tid_offset)
		__atomic_store_n(&thread->tid, ml_own_tid(), __ATOMIC_RELAXED);
	send(view, thread, call, flags);
	ml_thread_leave(view, thread);
}

void ml_evidence_send_if_due(const struct ml_view *view, struct ml_thread *thread, const struct ml_evidence_call *call)
{
	struct ml_key *key = &view->keys[call->block->key_index];
	ml_u32 flags;

	if (!call->block->key_index || !is_due(view, key, &flags))
		return;
	if (flags & ML_EVIDENCE_VERIFY && !(view->settings.flags & ML_SETTING_EVERY_STACK) && was_sent_last(view, call))
		set_next_verify(thread, key);
	else
		ml_evidence_send(view, thread, call, flags);
}
