/* SPDX-License-Identifier: Apache-2.0 */
/* Opens argv[1], calls its leak(), closes it, and the same with argv[2]: both lie at the same address, or it fails. */
#include <dlfcn.h>

static void *call(const char *path)
{
	void *library = dlopen(path, RTLD_NOW);
	void (*leak)(void) = library ? (void (*)(void))dlsym(library, "leak") : 0;

	if (!leak)
		return 0;
	leak();
	leak();
	leak();
	return dlclose(library) ? 0 : (void *)leak;
}

int main(int argc, char **argv)
{
	void *first, *second;

	if (argc != 3)
		return 3;
	first = call(argv[1]);
	second = call(argv[2]);
	return !first || first != second;
}
