// SPDX-License-Identifier: Apache-2.0
#include "agent/inject/command.h"

#include <stdio.h>
#include <stdlib.h>

#include "agent/inject/inject.h"

int ml_inject_command(char *const *words, int n_words)
{
	struct ml_injection injection = { .pid = atoi(words[0]), .library = words[1], .function = words[2],
					  .argument = n_words > 3 ? words[3] : NULL };
	struct ml_injected injected;

	if (ml_inject(&injection, &injected)) {
		fprintf(stderr, "%s\n", injected.refusal.text);
		return 4;
	}
	printf("%d %u %u\n", (int)injected.result, injected.n_threads, injected.n_looks);
	for (ml_u32 i = 0; i < injected.stops.n; i++) {
		const struct ml_stop *stop = &injected.stops.stops[i];

		printf("stop %u %llu %llu %u\n", stop->stopped, (unsigned long long)stop->timestamp_ns,
		       (unsigned long long)stop->duration_ns, stop->n_threads);
	}
	return 0;
}
