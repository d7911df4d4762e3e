int object_hold(const void *);
void object_drop(const void *);

/* Ten objects with two of five references left, three with none. The last has its references by two callers. */
static void hold_again(const void *object, int times)
{
	for (int i = 0; i < times; i++)
		object_hold(object);
}

int main(int argc, char **argv)
{
	static long objects[14];

	for (int i = 0; i < 13; i++) {
		for (int k = 0; k < 5; k++)
			object_hold(&objects[i]);
		for (int k = 0; k < (i < 10 ? 3 : 5); k++)
			object_drop(&objects[i]);
	}
	hold_again(&objects[13], argc > 1 ? 1000 : 2);
	(void)argv;
	return 0;
}
