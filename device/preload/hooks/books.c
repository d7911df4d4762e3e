// SPDX-License-Identifier: Apache-2.0
#include "preload/hooks/books.h"

#include "preload/freestanding/bytes.h"

static int is_free(const struct ml_hook_module *module)
{
	return !module->dynamic;
}

static void forget_slots(struct ml_hook_books *books, ml_u32 module)
{
	ml_u32 kept = 0;

	for (ml_u32 i = 0; i < books->n_slots; i++)
		if (books->slots[i].module != module)
			books->slots[kept++] = books->slots[i];
	books->n_slots = kept;
}

static struct ml_hook_module *take_entry(struct ml_hook_books *books)
{
	for (ml_u32 i = 0; i < books->n_modules; i++)
		if (is_free(&books->modules[i]))
			return &books->modules[i];
	return books->n_modules < ML_HOOK_MODULES ? &books->modules[books->n_modules++] : NULL;
}

struct ml_hook_module *ml_hook_books_module(struct ml_hook_books *books, const struct ml_module *module, int *is_new)
{
	ml_u64 name_hash = ml_hash_text(module->name, ml_length(module->name));
	const char *name = ml_file_name(module->name);
	struct ml_hook_module *entry = NULL;
	size_t length;

	for (ml_u32 i = 0; i < books->n_modules && !entry; i++)
		if (books->modules[i].dynamic == module->dynamic)
			entry = &books->modules[i];
	if (entry && entry->base == module->base && entry->name_hash == name_hash) {
		entry->pass = books->pass;
		*is_new = 0;
		return entry;
	}
	if (entry)
		forget_slots(books, (ml_u32)(entry - books->modules));
	else
		entry = take_entry(books);
	*is_new = 1;
	if (!entry) {
		books->n_modules_without_room++;
		return NULL;
	}
	*entry = (struct ml_hook_module){
		.base = module->base,
		.dynamic = module->dynamic,
		.low = module->low,
		.high = module->high,
		.name_hash = name_hash,
		.pass = books->pass,
		.report = { .module = module->low },
	};
	length = ml_length(name);
	ml_copy(entry->report.name, name, length < sizeof(entry->report.name) ? length : sizeof(entry->report.name) - 1);
	return entry;
}

void ml_hook_books_drop_unseen(struct ml_hook_books *books)
{
	for (ml_u32 i = 0; i < books->n_modules; i++) {
		if (is_free(&books->modules[i]) || books->modules[i].pass == books->pass)
			continue;
		forget_slots(books, i);
		books->modules[i].dynamic = 0;
	}
}

int ml_hook_books_add(struct ml_hook_books *books, const struct ml_hook_module *module, unsigned long slot,
		      unsigned long original, unsigned int hook)
{
	if (books->n_slots == ML_HOOK_SLOTS)
		return 0;
	books->slots[books->n_slots++] = (struct ml_hook_slot){
		.address = slot,
		.original = original,
		.module = (ml_u16)(module - books->modules),
		.hook = (ml_u16)hook,
	};
	return 1;
}

static int is_same(const struct ml_hooked *old, const struct ml_hooked *new)
{
	return old->module == new->module && old->n_slots == new->n_slots && old->n_refused == new->n_refused &&
	       old->n_foreign == new->n_foreign && old->flags == new->flags && ml_is_same_text(old->name, new->name);
}

void ml_hook_rows_add(const struct ml_view *view, const struct ml_hooked *row)
{
	struct ml_segment *segment = view ? view->segment : NULL;
	ml_u32 n = segment ? segment->n_hooked : 0;

	/* A library that is loaded again and again is reported once. */
	for (ml_u32 i = 0; i < n && i < ML_HOOKED_MAX; i++)
		if (is_same(&view->hooked[i], row))
			return;
	if (segment && n >= ML_HOOKED_MAX)
		segment->n_hooked_lost++;
	else if (segment) {
		view->hooked[n] = *row;
		__atomic_store_n(&segment->n_hooked, n + 1, __ATOMIC_RELEASE);
	}
}
