// SPDX-License-Identifier: Apache-2.0
#include "agent/inject/inline_hooks.h"

#include <string.h>

static bool is_attach(const struct ml_injection *injection)
{
	return injection->argument != NULL;
}

int ml_inline_before(const struct ml_injection *injection, struct ml_patch_result *changed)
{
	memset(changed, 0, sizeof(*changed));
	if (!injection->patches || !is_attach(injection))
		return 0;
	return ml_patch_fill_slots(injection->pid, injection->patches, &changed->refusal);
}

static void apply(const struct ml_injection *injection, struct ml_patch_result *changed)
{
	struct ml_injection detach = *injection;
	struct ml_injected detached;

	if (!ml_patch_apply(injection->pid, injection->patches, changed))
		return;
	detach.function = "memleak_detach";
	detach.argument = NULL;
	ml_inject(&detach, &detached);
}

void ml_inline_after(const struct ml_injection *injection, struct ml_patch_result *changed,
		     struct ml_injected *injected)
{
	if (!injection->patches)
		return;
	if (!is_attach(injection)) /* also if the call of the shim failed */
		ml_patch_revert(injection->pid, injection->patches, changed);
	else if (!*changed->refusal.text && !*injected->refusal.text)
		apply(injection, changed);
	ml_stop_times_append(&injected->stops, &changed->stops);
	injected->n_attempts += changed->n_attempts;
	if (*changed->refusal.text)
		injected->refusal = changed->refusal;
}
