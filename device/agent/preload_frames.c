// SPDX-License-Identifier: Apache-2.0
#include "preload_frames.h"

/* The shim gives its code map a new generation when code went away, before it names another stack. */
static ml_u64 image_of(void *context, ml_u32 pid)
{
	const struct ml_preload_target *target = context;
	const struct ml_view *view = &target->view;
	ml_u32 current = __atomic_load_n(&view->segment->current_map, __ATOMIC_ACQUIRE) & 1;

	(void)pid;
	return __atomic_load_n(&view->code_maps[current].generation, __ATOMIC_ACQUIRE);
}

void ml_preload_frames_learn(struct ml_frames *frames, struct ml_preload_target *target,
			     const struct ml_evidence *record)
{
	struct ml_frames_space space = {
		.pid = target->pid,
		.image = image_of(target, target->pid),
		.rules = target->view.rules,
		.image_now = image_of,
		.context = target,
	};

	if (!frames || target->is_gone || record->key & ML_KEY_IS_EXACT)
		return;
	/* What has stayed the same of a stack whose walk ended early is worth another look. */
	if (ml_frames_learn(frames, &space, record) > 0)
		__atomic_fetch_add(&target->view.segment->rules_revision, 1, __ATOMIC_RELEASE);
}
