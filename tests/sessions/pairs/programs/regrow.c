/* Numbers that grow: where a call fails for size 0, the old one stays, or goes as realloc(p, 0)'s does. */
long regrow(long old, long size)
{
	return old < 0 ? 0 : size;
}

long regrow_if(long old, long size, int flags)
{
	return flags ? size : old;
}

long remake(long old, long size)
{
	return old < 0 ? 0 : size;
}

void drop(long number)
{
	(void)number;
}

void drop_if(long number)
{
	(void)number;
}

void unmake(long number)
{
	(void)number;
}
