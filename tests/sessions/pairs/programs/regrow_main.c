long regrow(long, long), regrow_if(long, long, int), remake(long, long);
void drop(long), drop_if(long), unmake(long);

int main(void)
{
	drop(regrow(0, 10));
	drop_if(regrow_if(0, 10, 1));
	unmake(remake(0, 10));
	regrow(regrow(regrow(0, 10), 20), 0);
	regrow_if(regrow_if(0, 30, 1), 0, 1);
	remake(remake(0, 40), 0);
	return 0;
}
