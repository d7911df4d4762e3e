// SPDX-License-Identifier: Apache-2.0
/* Loads a library as a virtual machine loads an app's: `host LIBRARY FOLDER [every]` calls its main(). */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
	int (*entry)(int, char **) = library ? (int (*)(int, char **))dlsym(library, "main") : NULL;

	if (!entry) {
		fprintf(stderr, "%s\n", dlerror());
		return 2;
	}
	return entry(argc - 1, argv + 1);
}
