// SPDX-License-Identifier: Apache-2.0
/* Has the names of CPython 3.12, a thread's state, a frame and a code object, but not what those lead to. */
#include <stdio.h>
#include <stdlib.h>

unsigned long PyType_Type[64], PyCode_Type[64] = { 0, (unsigned long)PyType_Type }, PyUnicode_Type[64], PyBytes_Type[64];
static unsigned long state[64], frame[16], code[64], text[16];

const char *Py_GetVersion(void)
{
	return "3.12.0";
}

int _Py_IsFinalizing(void)
{
	return 0;
}

void *PyGILState_GetThisThreadState(void)
{
	return state;
}

int main(void)
{
	unsigned long cframe[2] = { (unsigned long)frame };

	state[7] = (unsigned long)cframe;
	frame[0] = (unsigned long)code;
	code[1] = (unsigned long)PyCode_Type;
	code[16] = (unsigned long)text;
	text[1] = (unsigned long)PyUnicode_Type;
	for (int i = 0; i < 100; i++)
		*(volatile char *)malloc(1000) = 1;
	puts("done");
	return 0;
}
