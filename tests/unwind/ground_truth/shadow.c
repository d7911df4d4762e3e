/* Ground truth for unwinders: a shadow stack of return addresses, kept while an emulated CPU runs.
 *
 * It knows nothing of unwind tables. A call pushes what the CPU put into the link register; control that arrives at the
 * top return address with the stack pointer of the call pops it; control that arrives with a stack pointer above the
 * top call's has left that call otherwise (longjmp, an exception), and so have those below it that stand under it.
 * A tail call and a switch do neither. At chosen instruction counts it stores registers, stack bytes and this stack. */
#include <stdint.h>
#include <string.h>
#include <unicorn/unicorn.h>

enum { DEPTH_MAX = 4096, REGIONS_MAX = 16, REGISTERS_MAX = 40, SEEN_BITS = 20 };

struct region { /* guest memory [start, end) and where it is in ours */
	uint64_t start, end;
	uint8_t *bytes;
};

struct call {
	uint64_t back; /* the return address, or the interrupted pc */
	uint64_t sp;   /* at the callee's entry, or of what was interrupted */
	uint64_t is_interruption;
};

struct samples { /* columns; Python owns the memory */
	uint64_t capacity, count;
	uint64_t stack_capacity, stack_fill;
	uint64_t chain_capacity, chain_fill;
	uint64_t *registers, *stack_offset, *stack_length, *chain_offset, *chain_length, *space, *is_first_visit;
	uint64_t *beside_address, *beside_offset, *beside_length; /* the interrupted stack, where the handler has its own */
	uint8_t *stack;
	uint64_t *chain; /* innermost first, the pc itself included */
};

struct shadow {
	uint64_t is_arm32;
	uint64_t regions_count, registers_count;
	struct region regions[REGIONS_MAX];
	int32_t registers[REGISTERS_MAX]; /* the emulator's numbers, in the order of the samples' columns */
	uint64_t sp_register, lr_register;
	uint64_t stack_low, stack_high, other_low, other_high; /* the main stack, the signal stack */
	uint64_t slice_max;
	uint64_t executed, sample_at, stop_at, mean, random;
	uint64_t first_visits; /* of 2^16 instructions that run for the first time, how many are sampled */
	uint64_t space;
	uint64_t previous, next;
	uint64_t depth, lost; /* lost: calls beyond DEPTH_MAX */
	struct call calls[DEPTH_MAX];
	struct samples out;
	uint64_t seen[1 << SEEN_BITS]; /* instruction addresses, by a hash that may forget */
};

static uint64_t random_number(struct shadow *s)
{
	s->random ^= s->random << 13;
	s->random ^= s->random >> 7;
	s->random ^= s->random << 17;
	return s->random;
}

static uint64_t get(uc_engine *uc, uint64_t number)
{
	uint64_t value = 0;
	uc_reg_read(uc, (int)number, &value);
	return value;
}

static const uint8_t *bytes_at(const struct shadow *s, uint64_t address)
{
	for (uint64_t i = 0; i < s->regions_count; i++)
		if (address >= s->regions[i].start && address < s->regions[i].end)
			return s->regions[i].bytes + (address - s->regions[i].start);
	return NULL;
}

/* Arm ARM (DDI 0487) C4.1.66; pointer-authenticating forms included. */
static int is_arm64_call(uint32_t word)
{
	return word >> 26 == 0x25 || (word & 0xFEFFF000) == 0xD63F0000;
}

/* Arm ARM (DDI 0406) A8.8.25, A8.8.26: bl, blx in ARM code. */
static int is_arm_call(uint32_t word)
{
	return (word & 0x0F000000) == 0x0B000000 || word >> 25 == 0x7D || (word & 0x0FFFFFF0) == 0x012FFF30;
}

static int is_thumb_call(const uint8_t *code, uint64_t size)
{
	uint16_t first, second;
	memcpy(&first, code, 2);
	if (size == 2)
		return (first & 0xFF87) == 0x4780;
	memcpy(&second, code + 2, 2);
	return (first & 0xF800) == 0xF000 && (second & 0xC000) == 0xC000;
}

static int was_call(const struct shadow *s, uint64_t back)
{
	const uint8_t *code = bytes_at(s, s->previous);
	uint32_t word;

	if ((back & ~(uint64_t)s->is_arm32) != s->next || !code)
		return 0;
	if (s->is_arm32 && (back & 1))
		return is_thumb_call(code, s->next - s->previous);
	memcpy(&word, code, 4);
	return s->is_arm32 ? is_arm_call(word) : is_arm64_call(word);
}

/* Whether the last instruction jumped to the link register: ret, br x30, bx lr. */
static int was_return(const struct shadow *s)
{
	const uint8_t *code = bytes_at(s, s->previous);
	uint32_t word = 0;

	if (!code)
		return 0;
	memcpy(&word, code, s->next - s->previous);
	if (!s->is_arm32)
		return word == 0xD65F03C0 || word == 0xD61F03C0 || (word & 0xFFFFFBFF) == 0xD65F0BFF;
	return s->next - s->previous == 2 ? word == 0x4770 : (word & 0x0FFFFFFF) == 0x012FFF1E;
}

void shadow_push(struct shadow *s, uint64_t back, uint64_t sp, uint64_t is_interruption)
{
	if (s->depth < DEPTH_MAX)
		s->calls[s->depth++] = (struct call){back, sp, is_interruption};
	else
		s->lost++;
}

/* sigreturn: what was called since the interruption is over, and the interruption too. */
void shadow_resume(struct shadow *s, uint64_t pc)
{
	while (s->depth && !s->calls[s->depth - 1].is_interruption)
		s->depth--;
	if (s->depth)
		s->depth--;
	s->next = pc;
}

static int on_other(const struct shadow *s, uint64_t sp)
{
	return sp >= s->other_low && sp < s->other_high;
}

static void leave_calls(struct shadow *s, uint64_t sp)
{
	while (s->depth && on_other(s, s->calls[s->depth - 1].sp) != on_other(s, sp))
		s->depth--;
	while (s->depth && s->calls[s->depth - 1].sp <= sp && on_other(s, s->calls[s->depth - 1].sp) == on_other(s, sp))
		s->depth--;
}

static void on_branch(struct shadow *s, uc_engine *uc, uint64_t address)
{
	uint64_t sp = get(uc, s->sp_register), back = get(uc, s->lr_register);
	const struct call *top = s->depth ? &s->calls[s->depth - 1] : NULL;

	if (was_call(s, back))
		shadow_push(s, back, sp, 0);
	else if (!top)
		return;
	else if ((top->back & ~(uint64_t)s->is_arm32) == address && top->sp == sp && !top->is_interruption)
		s->depth--;
	else if (on_other(s, sp) != on_other(s, top->sp) || sp > top->sp || (sp == top->sp && was_return(s)))
		leave_calls(s, sp);
}

static int is_first_visit(struct shadow *s, uint64_t address)
{
	uint64_t *slot = &s->seen[address * 0x9E3779B97F4A7C15u >> (64 - SEEN_BITS)];

	if (*slot == address)
		return 0;
	*slot = address;
	return (random_number(s) >> 20 & 0xFFFF) < s->first_visits;
}

static uint64_t copy_stack(struct shadow *s, uint64_t sp, uint64_t *offset)
{
	struct samples *out = &s->out;
	uint64_t high = on_other(s, sp) ? s->other_high : s->stack_high, length = high - sp;
	const uint8_t *bytes = bytes_at(s, sp);

	*offset = out->stack_fill;
	if (!bytes || sp > high)
		return 0;
	length = (length < s->slice_max ? length : s->slice_max) & ~(uint64_t)7;
	memcpy(out->stack + out->stack_fill, bytes, length);
	out->stack_fill += length;
	return length;
}

static void copy_chain(struct shadow *s, uint64_t pc, uint64_t i)
{
	struct samples *out = &s->out;

	out->chain_offset[i] = out->chain_fill;
	out->chain[out->chain_fill++] = pc;
	for (uint64_t k = s->depth; k-- > 0;)
		out->chain[out->chain_fill++] = s->calls[k].back;
	out->chain_length[i] = s->depth + 1;
}

static void copy_interrupted_stack(struct shadow *s, uint64_t sp, uint64_t i)
{
	struct samples *out = &s->out;

	out->beside_length[i] = 0;
	for (uint64_t k = s->depth; on_other(s, sp) && k-- > 0;)
		if (!on_other(s, s->calls[k].sp)) {
			out->beside_address[i] = s->calls[k].sp;
			out->beside_length[i] = copy_stack(s, s->calls[k].sp, &out->beside_offset[i]);
			return;
		}
}

static void take_sample(struct shadow *s, uc_engine *uc, uint64_t pc, int is_new)
{
	struct samples *out = &s->out;
	uint64_t i = out->count, *row = out->registers + i * s->registers_count;
	void *values[REGISTERS_MAX];
	uint64_t sp = get(uc, s->sp_register);

	if (i == out->capacity || out->stack_fill + 2 * s->slice_max > out->stack_capacity ||
	    out->chain_fill + s->depth + 1 > out->chain_capacity || s->lost)
		return;
	for (uint64_t k = 0; k < s->registers_count; k++)
		values[k] = row + k;
	uc_reg_read_batch(uc, s->registers, values, (int)s->registers_count);
	out->stack_length[i] = copy_stack(s, sp, &out->stack_offset[i]);
	copy_interrupted_stack(s, sp, i);
	copy_chain(s, pc, i);
	out->space[i] = s->space;
	out->is_first_visit[i] = is_new;
	out->count++;
}

/* Whether the instruction may be under an IT of Thumb code, whose state would be lost by stopping here. */
static int may_be_conditional(const struct shadow *s, uint64_t address)
{
	for (uint64_t back = 2; s->is_arm32 && back <= 16; back += 2) {
		const uint8_t *code = bytes_at(s, address - back);
		if (code && code[1] == 0xBF && (code[0] & 15))
			return 1;
	}
	return 0;
}

void shadow_on_instruction(uc_engine *uc, uint64_t address, uint32_t size, void *user)
{
	struct shadow *s = user;
	int is_new;

	if (address != s->next && address != s->previous)
		on_branch(s, uc, address);
	s->previous = address;
	s->next = address + size;
	is_new = s->first_visits && is_first_visit(s, address);
	if (is_new || s->executed == s->sample_at) {
		take_sample(s, uc, address, is_new);
		if (s->executed == s->sample_at)
			s->sample_at += 1 + random_number(s) % (2 * s->mean);
	}
	if (++s->executed >= s->stop_at && !may_be_conditional(s, address))
		uc_emu_stop(uc);
}

uint64_t shadow_size(void)
{
	return sizeof(struct shadow);
}
