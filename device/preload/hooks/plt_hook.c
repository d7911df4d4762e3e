// SPDX-License-Identifier: Apache-2.0
#include "preload/hooks/plt_hook.h"

#include <sys/mman.h>

#include "preload/segment/attach_abi.h"
#include "preload/freestanding/bytes.h"
#include "preload/freestanding/clock.h"
#include "preload/hooks/books.h"
#include "preload/freestanding/lock.h"
#include "preload/hooks/names.h"
#include "preload/hooks/slots.h"
#include "preload/hooks/relocations.h"
#include "preload/freestanding/syscalls.h"

#define SETTLE_NS 10000000
#define TRIES 200
#define YIELDS 3 /* a waiting thread tries once in each SETTLE_NS */

static struct ml_hook_books books;
static struct ml_lock lock; /* guards `books`; never waited for where the loader's lock may be held */
static int is_pass_due; /* another pass is due: a thread found the lock taken */
static int waiter; /* pid of the process in which a thread waits for the lock, 0 = none: a child of fork() has another */
static int is_patching;  /* new modules are to be patched */
static unsigned int families; /* bits: whose names are patched */
static unsigned long plt_entries[ML_HOOKS]; /* of the program; a call of one is seen at the program's slot. 0 = none */
static const struct ml_view *listener;

static int lock_or_time_out(void)
{
	int is_ours = 0;

	__atomic_store_n(&waiter, (int)ML_SYSCALL0(getpid), __ATOMIC_RELAXED);
	for (int i = 0; i < TRIES && !is_ours; i++) {
		is_ours = ml_lock_try(&lock);
		if (!is_ours)
			ml_pause_ns(SETTLE_NS);
	}
	__atomic_store_n(&waiter, 0, __ATOMIC_RELAXED);
	return is_ours;
}

/* Threads that load modules all the time would keep the lock from the one that attaches or detaches. Called without the lock. */
static void let_waiter_go_first(void)
{
	for (int i = 0; i < YIELDS && __atomic_load_n(&waiter, __ATOMIC_RELAXED) == (int)ML_SYSCALL0(getpid); i++)
		ml_pause_ns(SETTLE_NS);
}

/* ---- reports ------------------------------------------------------------------------------------------ */

void ml_plt_hook_report_to(const struct ml_view *view)
{
	ml_u64 now_ns = ml_clock_exact_ns();

	if (!lock_or_time_out())
		return;
	listener = view;
	for (ml_u32 i = 0; view && i < books.n_modules; i++) {
		if (!books.modules[i].dynamic)
			continue;
		books.modules[i].report.since_ns = 0; /* present since the session began */
		books.modules[i].report.patched_ns = now_ns;
		ml_hook_rows_add(listener, &books.modules[i].report);
	}
	if (view)
		view->segment->n_hooked_lost += books.n_modules_without_room;
	ml_lock_release(&lock, 0);
}

/* ---- one module --------------------------------------------------------------------------------------- */

struct pass {
	void (*visit)(struct pass *pass);
	ml_u64 since_ns;
	const struct ml_mappings *maps;
	struct ml_hook_pages pages;
	int n_left; /* slots that could not be restored */
	int n_unsettled;
	/* the current module */
	const struct ml_module *module;
	struct ml_hook_module *entry;
	struct ml_elf elf;
	enum ml_binding binding;
};

static int is_own(const struct ml_module *module)
{
	return (unsigned long)&books - module->low < module->high - module->low;
}

/* The kernel's module makes no calls. */
static int is_vdso(const struct ml_module *module)
{
	return ml_starts_with(module->name, "linux-vdso") || ml_starts_with(module->name, "[vdso]");
}

/* Writable though it should be read-only by now: the loader is still relocating, or the program wants it so. */
static int is_unsettled(const struct pass *pass, unsigned long slot)
{
	const struct ml_own_mapping *range = ml_mappings_find(pass->maps, slot);

	return !pass->entry->is_settled && ml_hook_is_in_relro(pass->module, slot) && range && range->protection & PROT_WRITE;
}

static void patch_slot(struct pass *pass, const struct ml_relocation *relocation, unsigned int number, unsigned long value)
{
	const struct ml_hook *hook = &ml_hooks[number];
	struct ml_hooked *report = &pass->entry->report;
	int error;

	if (is_unsettled(pass, relocation->address)) {
		pass->n_unsettled++;
		return;
	}
	if (!ml_hook_books_add(&books, pass->entry, relocation->address, value, number)) {
		report->flags |= ML_HOOKED_NO_ROOM;
		report->n_refused++;
		return;
	}
	error = ml_hook_pages_store(&pass->pages, relocation->address, value, hook->entry);
	if (error > 0 && value != hook->real) /* bound by the loader meanwhile */
		error = ml_hook_pages_store(&pass->pages, relocation->address, hook->real, hook->entry);
	if (!error) {
		report->n_slots += ml_hook_is_of_heap(hook);
		return;
	}
	books.n_slots--;
	if (error < 0)
		report->flags |= ML_HOOKED_READ_ONLY;
	report->n_refused++;
}

static void visit_slot(void *context, const struct ml_relocation *relocation)
{
	struct pass *pass = context;
	const char *name = ml_elf_symbol_name(&pass->elf, relocation->symbol);
	unsigned int number = name ? ml_hook_number(name) : ML_HOOKS;
	const struct ml_hook *hook = &ml_hooks[number];
	unsigned long value;

	if (number == ML_HOOKS || !hook->real || relocation->addend || !(families & ML_HOOK_BIT(hook->family)) ||
	    relocation->address % sizeof(value) || !ml_mappings_can_read(pass->maps, relocation->address, sizeof(value)))
		return;
	if (pass->elf.is_program)
		plt_entries[number] = ml_elf_plt_entry(&pass->elf, relocation->symbol);
	value = __atomic_load_n((unsigned long *)relocation->address, __ATOMIC_RELAXED);
	if (value == hook->entry || value == plt_entries[number])
		return;
	if (value == hook->real || ml_hook_is_stub(pass->module, &pass->elf, &pass->binding, relocation, hook))
		patch_slot(pass, relocation, number, value);
	else if (ml_hook_is_of_heap(hook))
		pass->entry->report.n_foreign++;
}

static int holds(const struct pass *pass, const struct ml_hook_slot *slot, unsigned long value)
{
	return ml_mappings_can_read(pass->maps, slot->address, sizeof(value)) &&
	       __atomic_load_n((unsigned long *)slot->address, __ATOMIC_RELAXED) == value;
}

static void forget_lost_slots(const struct pass *pass)
{
	ml_u32 module = (ml_u32)(pass->entry - books.modules);
	ml_u32 kept = 0;

	for (ml_u32 i = 0; i < books.n_slots; i++) {
		const struct ml_hook_slot *slot = &books.slots[i];

		if (slot->module != module || holds(pass, slot, ml_hooks[slot->hook].entry))
			books.slots[kept++] = *slot;
	}
	books.n_slots = kept;
}

static ml_u32 count_slots(const struct ml_hook_module *module)
{
	ml_u32 n = 0;

	for (ml_u32 i = 0; i < books.n_slots; i++)
		n += books.slots[i].module == (ml_u32)(module - books.modules) &&
		     ml_hook_is_of_heap(&ml_hooks[books.slots[i].hook]);
	return n;
}

static void patch_module(struct pass *pass, int is_new)
{
	struct ml_hook_module *entry = pass->entry;
	struct ml_hooked before = entry->report, *report = &entry->report;
	int n_unsettled = pass->n_unsettled;

	if (is_new)
		report->since_ns = pass->since_ns;
	else
		forget_lost_slots(pass); /* loaded again at the same address, or rebound by the loader */
	report->n_refused = report->n_foreign = 0;
	pass->binding = ML_BINDING_UNKNOWN;
	report->flags = pass->elf.symbols && pass->elf.is_program ? ML_HOOKED_PROGRAM : 0;
	report->n_slots = count_slots(entry);
	entry->has_runpath = pass->elf.has_runpath;
	if (!pass->elf.symbols || ml_relocations_each(&pass->elf, visit_slot, pass))
		report->flags |= ML_HOOKED_MALFORMED;
	if (pass->n_unsettled > n_unsettled)
		report->flags |= ML_HOOKED_UNSETTLED;
	entry->is_settled = 1;
	if (is_new || report->n_slots != before.n_slots || report->flags != before.flags) {
		report->patched_ns = ml_clock_exact_ns();
		ml_hook_rows_add(listener, report);
	}
}

static int open_module(struct pass *pass)
{
	return ml_elf_open(&pass->elf, pass->maps, pass->module->base, pass->module->dynamic);
}

static void patch(struct pass *pass)
{
	int is_new;

	pass->entry = ml_hook_books_module(&books, pass->module, &is_new);
	if (!pass->entry)
		return;
	if (open_module(pass))
		pass->elf.symbols = 0;
	patch_module(pass, is_new);
}

/* A module that was loaded again at the same address may not be relocated yet: its slots hold offsets. */
static int holds_code(const struct pass *pass, const struct ml_hook_slot *slot)
{
	const struct ml_own_mapping *range;

	if (!ml_mappings_can_read(pass->maps, slot->address, sizeof(slot->address)))
		return 0;
	range = ml_mappings_find(pass->maps, __atomic_load_n((unsigned long *)slot->address, __ATOMIC_RELAXED));
	return range && range->protection & PROT_EXEC;
}

static void restore_slot(struct pass *pass, const struct ml_hook_slot *slot)
{
	unsigned long ours = ml_hooks[slot->hook].entry;

	if (holds(pass, slot, ml_hooks[slot->hook].real) || holds(pass, slot, slot->original))
		return;
	if (ml_hook_pages_store(&pass->pages, slot->address, ours, slot->original) && holds_code(pass, slot))
		pass->n_left++;
}

static void restore(struct pass *pass)
{
	int is_new;
	const struct ml_hook_module *entry = ml_hook_books_module(&books, pass->module, &is_new);

	for (ml_u32 i = 0; entry && !is_new && i < books.n_slots; i++)
		if (books.slots[i].module == (ml_u32)(entry - books.modules))
			restore_slot(pass, &books.slots[i]);
}

static void scan(struct pass *pass)
{
	if (!open_module(pass))
		ml_hook_scan_module(&pass->elf, pass->module);
}

static void visit_module(void *context, const struct ml_mappings *maps, const struct ml_module *module)
{
	struct pass *pass = context;

	if (is_own(module) || is_vdso(module))
		return;
	pass->maps = pass->pages.maps = maps;
	pass->module = pass->pages.module = module;
	pass->visit(pass);
	ml_hook_pages_close(&pass->pages);
}

/* ---- all modules -------------------------------------------------------------------------------------- */

/* 0 or -errno. The caller holds the lock. */
static int run_pass(struct pass *pass, void (*visit)(struct pass *pass), ml_u64 since_ns)
{
	int error;

	*pass = (struct pass){ .visit = visit, .since_ns = since_ns };
	books.pass++;
	books.n_modules_without_room = 0;
	error = ml_modules_each(visit_module, pass);
	if (!error)
		ml_hook_books_drop_unseen(&books);
	return error;
}

int ml_plt_hook_find_originals(void)
{
	int error = ml_modules_each(visit_module, &(struct pass){ .visit = scan });

	return error ? error : ml_hook_adopt();
}

int ml_plt_hook_find_pairs(const struct ml_view *view)
{
	int error;

	if (!lock_or_time_out())
		return -EBUSY;
	ml_hook_name_pairs(view);
	error = ml_modules_each(visit_module, &(struct pass){ .visit = scan });
	ml_hook_adopt_pairs();
	return ml_lock_release(&lock, error);
}

/* Two passes: the first may meet a module in the middle of its relocation or of a lazy binding. */
int ml_plt_hook_patch(unsigned int wanted)
{
	struct pass pass;
	int error;

	if (!lock_or_time_out())
		return -EBUSY;
	families |= wanted;
	is_patching = 1;
	error = run_pass(&pass, patch, 0);
	if (!error) {
		if (pass.n_unsettled)
			ml_pause_ns(SETTLE_NS);
		error = run_pass(&pass, patch, 0);
	}
	if (!error && !books.n_slots)
		error = ML_ATTACH_NO_SLOT;
	return ml_lock_release(&lock, error);
}

void ml_plt_hook_follow(ml_u64 since_ns)
{
	struct pass pass;

	__atomic_store_n(&is_pass_due, 1, __ATOMIC_SEQ_CST);
	let_waiter_go_first();
	while (__atomic_load_n(&is_pass_due, __ATOMIC_SEQ_CST) && ml_lock_try(&lock)) {
		__atomic_store_n(&is_pass_due, 0, __ATOMIC_SEQ_CST);
		if (is_patching)
			run_pass(&pass, patch, since_ns);
		ml_lock_release(&lock, 0);
	}
}

int ml_plt_hook_restore(void)
{
	struct pass pass;
	int error;

	if (!lock_or_time_out())
		return -EBUSY;
	is_patching = 0;
	families = 0;
	listener = NULL;
	error = run_pass(&pass, restore, 0);
	books.n_slots = 0;
	ml_hook_name_pairs(NULL);
	return ml_lock_release(&lock, error ? error : pass.n_left + pass.pages.n_unrestored);
}

int ml_plt_hook_is_plain_caller(unsigned long address)
{
	int is_known = 0, has_runpath = 0;

	if (!ml_lock_try(&lock))
		return 0;
	for (const struct ml_hook_module *module = books.modules; module < books.modules + books.n_modules; module++) {
		if (!module->dynamic)
			continue;
		is_known |= address >= module->low && address < module->high;
		has_runpath |= module->has_runpath;
	}
	return ml_lock_release(&lock, is_known && !has_runpath);
}
