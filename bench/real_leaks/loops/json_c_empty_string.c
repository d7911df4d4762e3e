#include "common.h"

void *json_object_new_string(const char *);
int json_object_set_string(void *, const char *), json_object_put(void *);

static void step(void)
{
	void *text = json_object_new_string("short");

	json_object_set_string(text, "a text that is longer than what was there before, for which memory is allocated");
	json_object_set_string(text, "");
	json_object_put(text);
}

int main(void)
{
	run(step, 2000);
}
