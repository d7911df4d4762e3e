#include "common.h"

typedef struct {
	unsigned char kind, pad;
	unsigned short offset;
	int size;
	union {
		void *pointer;
		double number;
	} u;
} jv;
void *jq_init(void);
void jq_start(void *, jv, int), jv_free(jv);
jv jq_next(void *), jv_parse(const char *);
int jq_compile(void *, const char *), jv_get_kind(jv);
static void *jq;

static void step(void)
{
	jv result;

	jq_start(jq, jv_parse("[1, {\"a\": \"a text, not a number\"}]"), 0);
	while (jv_get_kind(result = jq_next(jq)))
		jv_free(result);
	jv_free(result);
}

int main(void)
{
	jq = jq_init();
	if (!jq_compile(jq, "[.[] | ltrimstr(\"x\")]"))
		return 1;
	run(step, 2000);
}
