// SPDX-License-Identifier: Apache-2.0
/* A library that loads another by its bare name: found by this one's RUNPATH, or not at all. */
#include <dlfcn.h>

void *load_beside(void);
void *load_beside(void)
{
	void *volatile beside = dlopen("libbeside.so", RTLD_NOW);

	return beside;
}
