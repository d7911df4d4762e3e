// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The probes: one line each over the recorder. */
#include "recorder.bpf.h"

#define ML_ALLOCATOR(name, function, size, pointer)                                                                    \
	SEC("uprobe") int name##_entry(struct ml_regs *regs)                                                           \
	{                                                                                                              \
		return ml_enter(regs, function, size, pointer, 0);                                                     \
	}

#define ML_RELEASE(name, function)                                                                                               \
	SEC("uprobe") int name##_entry(struct ml_regs *regs)                                                           \
	{                                                                                                              \
		return ml_release(regs, function, ML_ARG1(regs));                                                                      \
	}

/* name, enum ml_function, requested bytes, pointer argument (old block, or where the result is stored) */
ML_ALLOCATOR(malloc, ML_FN_MALLOC, ML_ARG1(regs), 0)
ML_ALLOCATOR(calloc, ML_FN_CALLOC, ml_product(ML_ARG1(regs), ML_ARG2(regs)), 0)
ML_ALLOCATOR(realloc, ML_FN_REALLOC, ML_ARG2(regs), ML_ARG1(regs))
ML_ALLOCATOR(reallocarray, ML_FN_REALLOCARRAY, ml_product(ML_ARG2(regs), ML_ARG3(regs)), ML_ARG1(regs))
ML_ALLOCATOR(posix_memalign, ML_FN_POSIX_MEMALIGN, ML_ARG3(regs), ML_ARG1(regs))
ML_ALLOCATOR(memalign, ML_FN_MEMALIGN, ML_ARG2(regs), 0)
ML_ALLOCATOR(aligned_alloc, ML_FN_ALIGNED_ALLOC, ML_ARG2(regs), 0)
ML_ALLOCATOR(valloc, ML_FN_VALLOC, ML_ARG1(regs), 0)
ML_ALLOCATOR(pvalloc, ML_FN_PVALLOC, ML_ARG1(regs), 0)
ML_ALLOCATOR(mmap, ML_FN_MMAP, ML_ARG2(regs), 0)
ML_ALLOCATOR(mmap64, ML_FN_MMAP64, ML_ARG2(regs), 0)
ML_ALLOCATOR(munmap, ML_FN_MUNMAP, ML_ARG2(regs), ML_ARG1(regs))

SEC("uprobe") int mremap_entry(struct ml_regs *regs)
{
	return ml_enter(regs, ML_FN_MREMAP, ML_ARG3(regs), ML_ARG1(regs), ML_ARG2(regs));
}

ML_RELEASE(free, ML_FN_FREE)
ML_RELEASE(cfree, ML_FN_CFREE)
ML_RELEASE(free_sized, ML_FN_FREE_SIZED)
ML_RELEASE(free_aligned_sized, ML_FN_FREE_ALIGNED_SIZED)

/* All allocators return here: which one it was stands in the pending call. */
SEC("uretprobe") int allocation_return(struct ml_regs *regs)
{
	return ml_return(regs);
}

/* mmap and its family: in one program with the others it would need more stack than kernels give. */
SEC("uretprobe") int region_return(struct ml_regs *regs)
{
	return ml_region_return(regs);
}

/* The floor that the overhead benchmark compares with: the probes and nothing else. */
SEC("uprobe") int empty_entry(struct ml_regs *regs)
{
	(void)regs;
	return 0;
}

SEC("uretprobe") int empty_return(struct ml_regs *regs)
{
	(void)regs;
	return 0;
}

SEC("raw_tracepoint/sched_process_exit") int process_exit(void *context)
{
	(void)context;
	return ml_thread_exit();
}

SEC("raw_tracepoint/sched_process_exec") int process_exec(void *context)
{
	(void)context;
	return ml_process_exec();
}

SEC("tracepoint/task/task_newtask") int process_fork(void *event)
{
	return ml_process_fork(event);
}

SEC("tracepoint/syscalls/sys_enter_munmap") int code_unmapped(void *event)
{
	return ml_code_unmapped(event);
}

SEC("tracepoint/syscalls/sys_enter_mmap") int code_mapped(void *event)
{
	return ml_code_mapped(event);
}

SEC("tracepoint/syscalls/sys_enter_execve") int exec_begins(void *event)
{
	(void)event;
	return ml_exec_begins();
}

SEC("tracepoint/syscalls/sys_enter_execveat") int execat_begins(void *event)
{
	(void)event;
	return ml_exec_begins();
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
