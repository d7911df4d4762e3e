// SPDX-License-Identifier: Apache-2.0
// load_bpf: loads the smallest BPF program, `return 0`.
#include <err.h>
#include <linux/bpf.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void)
{
	const struct bpf_insn program[] = {
		{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0},
		{.code = BPF_JMP | BPF_EXIT},
	};
	union bpf_attr attributes = {
		.prog_type = BPF_PROG_TYPE_KPROBE,
		.insns = (uintptr_t)program,
		.insn_cnt = sizeof(program) / sizeof(*program),
		.license = (uintptr_t)"GPL",
	};
	if (syscall(SYS_bpf, BPF_PROG_LOAD, &attributes, sizeof(attributes)) < 0)
		err(1, "BPF_PROG_LOAD");
	return 0;
}
