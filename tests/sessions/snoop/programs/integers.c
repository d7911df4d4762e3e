/* Integer arguments of all widths: twelve calls each, with the numbers from -6 to 5. */
#define KEEP __attribute__((noinline, noipa, noclone))

KEEP void of_char(signed char x) { (void)x; }
KEEP void of_short(short x) { (void)x; }
KEEP void of_int(int x) { (void)x; }
KEEP void of_long(long x) { (void)x; }
KEEP void of_unsigned(unsigned x) { (void)x; }
KEEP void of_size(unsigned long x) { (void)x; }

int main(void)
{
	for (int i = -6; i < 6; i++) {
		of_char((signed char)i);
		of_short((short)i);
		of_int(i);
		of_long(i * 0x300000000L);
		of_unsigned((unsigned)i);
		of_size((i + 6) * 0x30000000UL);
	}
	return 0;
}
