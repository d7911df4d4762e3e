/* pool.c as a library's (whose main is pool_main there). */
int pool_main(int n_arguments, char **arguments);

int main(int n_arguments, char **arguments)
{
	int status = pool_main(n_arguments, arguments);

	__asm__ volatile("" : "+r"(status)); /* no tail call */
	return status;
}
