// SPDX-License-Identifier: Apache-2.0
#include "agent/inject/patch_plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/protocol/config.h"

#define FIELDS 8

static bool read_number(const char *text, const char *ends, ml_u64 *value, const char **end)
{
	char *behind;

	errno = 0;
	*value = strtoull(text, &behind, 16);
	*end = behind;
	return behind != text && !errno && (!*behind || strchr(ends, *behind));
}

static int digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Two digits a byte. */
static bool read_bytes(const char *text, ml_u8 *bytes, size_t room, ml_u32 *n)
{
	for (*n = 0; *text; text += 2) {
		int high = digit(text[0]), low = text[1] ? digit(text[1]) : -1;

		if (high < 0 || low < 0 || *n == room)
			return false;
		bytes[(*n)++] = (ml_u8)(high << 4 | low);
	}
	return *n > 0;
}

/* Bytes, or - */
static bool read_kept(const char *text, struct ml_patch *patch)
{
	return !strcmp(text, "-") || read_bytes(text, patch->kept, sizeof(patch->kept), &patch->n_kept);
}

/* PC:TO,PC:TO… or - */
static bool read_moves(const char *text, struct ml_patch_move *moves, ml_u32 *n)
{
	*n = 0;
	if (!strcmp(text, "-"))
		return true;
	for (;;) {
		struct ml_patch_move *move = &moves[*n];

		if (*n == ML_PATCH_MOVES_MAX || !read_number(text, ":", &move->pc, &text) || *text++ != ':' ||
		    !read_number(text, ",", &move->to, &text))
			return false;
		++*n;
		if (!*text++)
			return true;
	}
}

static bool read_patch(struct ml_patch *patch, char *text)
{
	char *fields[FIELDS], *rest = text;
	ml_u32 n_expected;
	int n = 0;

	while (n < FIELDS && (fields[n] = strsep(&rest, " ")))
		n++;
	return n == FIELDS && !rest && ml_config_number(fields[0], 16, &patch->address) && read_kept(fields[1], patch) &&
	       read_bytes(fields[2], patch->expected, sizeof(patch->expected), &n_expected) &&
	       read_bytes(fields[3], patch->patch, sizeof(patch->patch), &patch->n_bytes) && n_expected == patch->n_bytes &&
	       ml_config_number(fields[4], 16, &patch->trampoline) &&
	       read_bytes(fields[5], patch->code, sizeof(patch->code), &patch->n_code) &&
	       read_moves(fields[6], patch->moves, &patch->n_moves) && read_moves(fields[7], patch->returns, &patch->n_returns);
}

static bool read_slot(struct ml_patch_slot *slot, char *text)
{
	char *value = strchr(text, ' ');

	if (!value)
		return false;
	*value++ = '\0';
	return ml_config_number(text, 16, &slot->address) && ml_config_number(value, 16, &slot->value);
}

int ml_patch_take_line(void *context, const char *key, char *text)
{
	struct ml_patches **patches = context;
	bool is_slot = !strcmp(key, "slot"), is_read;

	if (!is_slot && strcmp(key, "patch"))
		return 0;
	if (!*patches)
		*patches = calloc(1, sizeof(**patches));
	if (!*patches)
		return -1;
	if (is_slot)
		is_read =
			(*patches)->n_slots < ML_PATCH_SLOTS_MAX && read_slot(&(*patches)->slots[(*patches)->n_slots++], text);
	else
		is_read = (*patches)->n < ML_PATCHES_MAX && read_patch(&(*patches)->patches[(*patches)->n++], text);
	return is_read ? 1 : -1;
}
