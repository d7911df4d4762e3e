/* Three at depths of which the kernel keeps no return address any more (64), of which we keep none (16), and of none. */
void *descend(int depth);
void leave(void *block);

int main(void)
{
	descend(0);
	descend(30);
	descend(200);
	leave(descend(30));
	return 0;
}
