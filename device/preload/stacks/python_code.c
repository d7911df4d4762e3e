// SPDX-License-Identifier: Apache-2.0
#include "preload/stacks/python_layout.h"

#include "preload/freestanding/bytes.h"
#include "preload/freestanding/lock.h"
#include "preload/segment/ring.h"

#define PHI 0x9e3779b97f4a7c15ull /* 2^64 / golden ratio */
#define RECORD_MAX (sizeof(struct ml_python_code) + 2 * ML_PYTHON_TEXT_MAX + ML_PYTHON_TABLE_MAX + 8)

static ml_u64 word_at(ml_u64 address)
{
	return *(const ml_u64 *)(unsigned long)address;
}

static ml_u32 half_at(ml_u64 address)
{
	return *(const ml_u32 *)(unsigned long)address;
}

/* Returns the number of bytes. */
static ml_u32 put_utf8(unsigned char *to, ml_u32 character)
{
	if (character < 0x80) {
		to[0] = (unsigned char)character;
		return 1;
	}
	if (character < 0x800) {
		to[0] = (unsigned char)(0xc0 | character >> 6);
		to[1] = (unsigned char)(0x80 | (character & 0x3f));
		return 2;
	}
	if (character < 0x10000) {
		to[0] = (unsigned char)(0xe0 | character >> 12);
		to[1] = (unsigned char)(0x80 | (character >> 6 & 0x3f));
		to[2] = (unsigned char)(0x80 | (character & 0x3f));
		return 3;
	}
	to[0] = (unsigned char)(0xf0 | (character >> 18 & 7));
	to[1] = (unsigned char)(0x80 | (character >> 12 & 0x3f));
	to[2] = (unsigned char)(0x80 | (character >> 6 & 0x3f));
	to[3] = (unsigned char)(0x80 | (character & 0x3f));
	return 4;
}

static ml_u32 character_at(ml_u64 text, ml_u32 width, ml_u64 i)
{
	const unsigned char *at = (const unsigned char *)(unsigned long)(text + width * i);
	ml_u32 character = at[0];

	for (ml_u32 byte = 1; byte < width; byte++)
		character |= (ml_u32)at[byte] << 8 * byte;
	return character;
}

/* A str object as UTF-8. Returns the number of bytes; 0 for a str that is not in one piece (PEP 393: they are of old extensions). */
static ml_u32 put_text(unsigned char *to, const struct ml_python_layout *layout, ml_u64 object)
{
	ml_u64 length = word_at(object + ML_PYTHON_SIZE);
	ml_u32 state = half_at(object + ML_PYTHON_TEXT_STATE), width = state >> 2 & 7, bytes = 0;
	ml_u64 text = object + (state >> 6 & 1 ? layout->ascii_text : layout->other_text);

	if (!(state >> 5 & 1) || (width != 1 && width != 2 && width != 4))
		return 0;
	for (ml_u64 i = 0; i < length && bytes + 4 <= ML_PYTHON_TEXT_MAX; i++)
		bytes += put_utf8(to + bytes, character_at(text, width, i));
	return bytes;
}

static ml_u32 put_table(unsigned char *to, ml_u64 object)
{
	ml_u64 bytes = word_at(object + ML_PYTHON_SIZE);

	if (bytes > ML_PYTHON_TABLE_MAX)
		bytes = ML_PYTHON_TABLE_MAX;
	ml_copy(to, (const void *)(unsigned long)(object + ML_PYTHON_BYTES), bytes);
	return (ml_u32)bytes;
}

/* Returns 0 if the ring is full. */
static int describe(const struct ml_view *view, struct ml_thread *thread, const struct ml_python_layout *layout, ml_u64 code,
		    ml_u32 number)
{
	struct ml_python_code *record = ml_ring_reserve_patiently(view, thread, RECORD_MAX);
	unsigned char *to = (unsigned char *)(record + 1);

	if (!record)
		return 0;
	*record = (struct ml_python_code){
		.pid = view->segment->pid,
		.code = number,
		.first_line = half_at(code + layout->code_first_line),
		.lines = layout->lines,
	};
	record->function_bytes = (ml_u16)put_text(to, layout, word_at(code + layout->code_function));
	to += record->function_bytes;
	record->file_bytes = (ml_u16)put_text(to, layout, word_at(code + layout->code_file));
	to += record->file_bytes;
	record->table_bytes = (ml_u16)put_table(to, word_at(code + layout->code_table));
	to += record->table_bytes;
	while ((unsigned long)to % 8)
		*to++ = 0;
	record->record_bytes = (ml_u32)(to - (unsigned char *)record);
	ml_ring_commit(view, thread, ML_RING_PYTHON_CODE, record->record_bytes);
	return 1;
}

/* Tells a code object from an earlier one that lay at the same address. */
static ml_u64 content_of(const struct ml_python_layout *layout, ml_u64 code)
{
	ml_u64 content = word_at(code + layout->code_function) ^ word_at(code + layout->code_table) << 1;

	return content ^ word_at(code + layout->code_file) << 2 ^ half_at(code + layout->code_first_line);
}

ml_u32 ml_python_code_number(const struct ml_view *view, struct ml_thread *thread, const struct ml_python_layout *layout,
			     ml_u64 code)
{
	static struct ml_lock lock;
	struct ml_python_slot *slot = &view->python_slots[(code >> 4) * PHI >> (64 - ML_PYTHON_SLOT_BITS)];
	ml_u64 content = content_of(layout, code);
	ml_u64 number = ml_read(&slot->number);
	int is_known = ml_read(&slot->content) == content && __atomic_load_n(&slot->code, __ATOMIC_ACQUIRE) == code;

	if (is_known && ml_read(&slot->number) == number)
		return (ml_u32)number;
	number = __atomic_add_fetch(&view->segment->n_python_codes, 1, __ATOMIC_RELAXED);
	if (!describe(view, thread, layout, code, (ml_u32)number))
		return 0;
	if (ml_lock_try(&lock)) { /* else it will be described again */
		__atomic_store_n(&slot->code, 0, __ATOMIC_RELEASE);
		ml_write(&slot->content, content);
		ml_write(&slot->number, number);
		__atomic_store_n(&slot->code, code, __ATOMIC_RELEASE);
		ml_lock_release(&lock, 0);
	}
	return (ml_u32)number;
}
