#include "common.h"

void *Z3_mk_config(void), *Z3_mk_context_rc(void *), *Z3_mk_solver(void *), *Z3_mk_bv_sort(void *, unsigned);
void *Z3_mk_fresh_const(void *, const char *, void *), *Z3_mk_eq(void *, void *, void *);
void Z3_solver_inc_ref(void *, void *), Z3_inc_ref(void *, void *);
int Z3_solver_check_assumptions(void *, void *, unsigned, void **);
static void *context, *solver, *equal;

static void *kept(void *term)
{
	Z3_inc_ref(context, term);
	return term;
}

static void step(void)
{
	Z3_solver_check_assumptions(context, solver, 1, &equal);
}

int main(void)
{
	void *sort;

	context = Z3_mk_context_rc(Z3_mk_config());
	Z3_solver_inc_ref(context, solver = Z3_mk_solver(context));
	sort = kept(Z3_mk_bv_sort(context, 32));
	equal = kept(Z3_mk_eq(context, kept(Z3_mk_fresh_const(context, "a", sort)), kept(Z3_mk_fresh_const(context, "b", sort))));
	run(step, 1000);
}
