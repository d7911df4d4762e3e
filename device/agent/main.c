// SPDX-License-Identifier: Apache-2.0
/* memleakd: runs one session on the target and speaks wire.h on its standard output. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/protocol/blocks.h"
#include "agent/bpf/session.h"
#include "capabilities.h"
#include "agent/protocol/config.h"
#include "agent/inject/inject.h"
#include "agent/inject/patch_plan.h"
#include "agent/kernel/session.h"
#include "agent/protocol/lent_stdio.h"
#include "agent/scan/memory_scan.h"
#include "agent/shim/session.h"
#include "agent/process/process_image.h"
#include "agent/process/target_objects.h"
#include "agent/snoop/session.h"
#include "agent/protocol/version.h"

static int run(int (*session)(const struct ml_config *))
{
	static struct ml_config config;

	ml_control_catch_signals();
	if (ml_config_read(&config, (struct ml_config_lines){ ml_patch_take_line, &config.patches })) {
		ml_blocks_end(ML_REASON_USAGE_ERROR, -1);
		return 2;
	}
	if (config.await && session != ml_preload_run) {
		ml_blocks_error(ML_REASON_USAGE_ERROR, "only the preload tracer can await a process");
		ml_blocks_end(ML_REASON_USAGE_ERROR, -1);
		return 2;
	}
	return session(&config);
}

int main(int argc, char **argv)
{
	const char *command;

	if (argc == 3 && !strcmp(argv[1], "lend"))
		return ml_stdio_lend(argv[2]);
	if (argc == 4 && !strcmp(argv[1], "borrow")) {
		if (ml_stdio_borrow(argv[2]))
			return 5;
		argv += 2;
		argc -= 2;
	}
	command = argc == 2 ? argv[1] : "";
	if (!strcmp(command, "--version")) {
		printf("memleakd %s wire %u\n", ML_AGENT_VERSION, ML_WIRE_VERSION);
		return 0;
	}
	if (!strcmp(command, "vdso"))
		return ml_vdso_print();
	if (argc == 5 && !strcmp(argv[1], "image"))
		return ml_process_image_print(atoi(argv[2]), argv[3], argv[4]);
	if (argc > 2 && !strcmp(argv[1], "objects"))
		return ml_target_objects_print(atoi(argv[2]), argv + 3, argc - 3);
	if ((argc == 3 || argc == 4) && !strcmp(argv[1], "scan"))
		return ml_memory_scan(atoi(argv[2]), argc == 4 ? argv[3] : NULL);
	if ((argc == 5 || argc == 6) && !strcmp(argv[1], "inject"))
		return ml_inject_command(argv + 2, argc - 2);
	if (!strcmp(command, "probe"))
		return ml_capabilities_print();
	if (!strcmp(command, "bpf"))
		return run(ml_bpf_run);
	if (!strcmp(command, "preload"))
		return run(ml_preload_run);
	if (!strcmp(command, "kernel"))
		return run(ml_kernel_run);
	if (!strcmp(command, "snoop"))
		return ml_snoop_run();
	fprintf(stderr,
		"usage: memleakd --version | probe | vdso | objects PID [NAME...] | image PID ADDRESS INODE | lend NAME |\n"
		"       inject PID LIBRARY FUNCTION [ARGUMENT] | scan PID [STACK_POINTER] |\n"
		"       [borrow NAME] bpf | kernel | preload | snoop\n");
	return 2;
}
