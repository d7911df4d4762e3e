/* 20 slots, 5 dropped; 10 numbers. All are forgotten if there is an argument, 0 too; else the last three. */
#include "handles.h"

int main(int argc, char **argv)
{
	unsigned long slots[20], numbers[10];

	(void)argv;
	for (int i = 0; i < 20; i++)
		slots[i] = handles_slot();
	for (int i = 0; i < 5; i++)
		handles_drop(slots[i]);
	for (int i = 0; i < 10; i++)
		handles_number(&numbers[i]);
	for (int i = argc > 1 ? 0 : 7; i < 10; i++)
		handles_forget(numbers[i]);
	return 0;
}
