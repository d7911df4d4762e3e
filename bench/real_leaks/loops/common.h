/* The loop of all C cases: run(step, per_s). SECONDS, UNTIL, READY and TRUTH are as in common.py. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static double rss(void)
{
	char text[128] = "";
	FILE *statm = fopen("/proc/self/statm", "r");
	double pages = 0;

	if (fgets(text, sizeof(text), statm))
		pages = atof(text + 1 + (int)(__builtin_strchr(text, ' ') - text));
	fclose(statm);
	return pages * 4096;
}

static void run(void (*step)(void), double per_s)
{
	const char *word = getenv("SECONDS"), *ready = getenv("READY"), *truth = getenv("TRUTH"), *until = getenv("UNTIL");
	double seconds = word ? atof(word) : 12, begin = now_s(), steps = 0, now, early = 0, early_rss = 0, early_steps = 0;
	FILE *out;

	if (ready)
		fclose(fopen(ready, "w"));
	do {
		for (int i = 0; i < per_s / 20 || i == 0; i++, steps++)
			step();
		now = now_s() - begin;
		if (early == 0 && now > seconds / 3) {
			early = now;
			early_rss = rss();
			early_steps = steps;
		}
		if (steps / per_s > now)
			usleep((steps / per_s - now) * 1e6);
	} while (now <= seconds || access(until ? until : "/", F_OK));
	out = truth ? fopen(truth, "w") : stdout;
	fprintf(out, "{\"rss_per_s\": %f, \"steps_per_s\": %f, \"rss_a_step\": %f}\n", (rss() - early_rss) / (now - early),
		(steps - early_steps) / (now - early), (rss() - early_rss) / (steps - early_steps));
	fclose(out);
}
