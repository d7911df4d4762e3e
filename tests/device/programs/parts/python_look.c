/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shim's first look at an interpreter, in LOOKS memories made up from SEED: objects that lead to each other as CPython's do, but
 * for one word in a hundred. No look may fault. Prints how many found frames that they trust, and how many not.
 *
 *   python_look SEED
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "preload/stacks/python_frames.c"

#define LOOKS 4000
#define WORDS 512
#define OBJECT_WORDS 32

ml_u64 PyTypes[4][16];
#define TYPE(symbol, n) __asm__(".globl " #symbol "\n.set " #symbol ", PyTypes + 128 * " #n)
TYPE(PyType_Type, 0);
TYPE(PyCode_Type, 1);
TYPE(PyUnicode_Type, 2);
TYPE(PyBytes_Type, 3);

static ml_u64 *memory;
static ml_u64 state;
static int minor;

static ml_u64 below(ml_u64 n)
{
	state = state * 6364136223846793005ull + 1442695040888963407ull;
	return (state >> 33) % n;
}

enum { FRAME, CODE, TEXT, TABLE };

/* Each kind has a quarter of the memory. */
static ml_u64 object(int kind)
{
	return (ml_u64)(unsigned long)&memory[WORDS / 4 * kind + OBJECT_WORDS * below(WORDS / 4 / OBJECT_WORDS)];
}

const char *Py_GetVersion(void)
{
	static char version[16];

	snprintf(version, sizeof(version), "3.%d.1", minor);
	return version;
}

int Py_IsFinalizing(void)
{
	return !below(9);
}

void *PyGILState_GetThisThreadState(void)
{
	return below(20) ? (void *)object(FRAME) : (void *)(below(2) ? 8 : ~7ul);
}

ml_u32 ml_python_code_number(const struct ml_view *view, struct ml_thread *thread, const struct ml_python_layout *of,
			     ml_u64 code)
{
	(void)view, (void)thread, (void)of, (void)code;
	return 1;
}

static ml_u64 garbage(void)
{
	switch (below(6)) {
	case 0: return below(2) ? 0 : ~below(1 << 20);
	case 1: return (ml_u64)(unsigned long)memory + below(8 * WORDS);
	case 2: return (ml_u64)(unsigned long)&memory[WORDS] + 8 * below(2000); /* not mapped */
	case 3: return (ml_u64)(unsigned long)PyTypes[below(4)];
	default: return object((int)below(4));
	}
}

/* A word of an object as an intact interpreter writes it. A code object's last text is its line table. */
static ml_u64 sound(int kind, int word)
{
	if (kind != FRAME && word == 1)
		return (ml_u64)(unsigned long)PyTypes[kind];
	if (kind == FRAME)
		return object(word == (minor < 12 ? 4 : 0) && below(9) ? CODE : FRAME);
	return object(word == (minor == 10 ? 15 : 17) ? TABLE : TEXT);
}

int main(int argc, char **argv)
{
	int results[3] = { 0 };

	state = argc > 1 ? (ml_u64)atoi(argv[1]) : 0;
	memory = mmap(NULL, 1 << 16, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mprotect(memory, 8 * WORDS, PROT_READ | PROT_WRITE);
	PyTypes[1][1] = (ml_u64)(unsigned long)PyTypes[0];
	for (int i = 0; i < LOOKS; i++) {
		ml_u64 at = below(3) ? (ml_u64)(unsigned long)memory : object(FRAME);
		struct ml_caller caller = { .stack_pointer = at, .stack_end = at + 8 * below(2 * WORDS) };

		minor = 9 + (int)below(6);
		for (int word = 0; word < WORDS; word++)
			memory[word] = below(100) ? sound(word / (WORDS / 4), word % OBJECT_WORDS) : garbage();
		results[try_to_read(&caller)]++;
	}
	printf("%d read, %d not\n", results[ML_PYTHON_READ], LOOKS - results[ML_PYTHON_READ]);
	return results[ML_PYTHON_READ] < LOOKS / 10;
}
