/* Handles that are no pointers: a generation in the top byte over an index, and numbers from 0 on. */
#include "handles.h"

static unsigned long generation = 1, next;

unsigned long handles_slot(void)
{
	return generation++ << 56 | 0x71;
}

void handles_drop(unsigned long slot)
{
	__asm__ volatile("" : : "r"(slot));
}

int handles_number(unsigned long *number)
{
	*number = next++;
	return 0;
}

void handles_forget(unsigned long number)
{
	__asm__ volatile("" : : "r"(number));
}
