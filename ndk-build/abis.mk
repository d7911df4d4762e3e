# Properties of the ABIs (Android's names).
# protect_*: of the shim, whose code runs in other programs' processes: signed return addresses, and BTI's landing pads.
# drop_tags_*: what lld writes into its .dynamic and Android's linkers before 11 warn of: DT_AARCH64_BTI_PLT.
# zig_*: target of the agent (static, musl). shim_*: target of the shim (freestanding, any libc).
# bpfarch_*: its name in bpf_tracing.h; none: the kernel places no uprobes in such code, or breaks it (Thumb). uapi_*: zig's folder of its kernel headers.

zig_x86_64       := x86_64-linux-musl
shim_x86_64      := x86_64-linux-gnu
cpu_x86_64       := -mcpu=x86_64
bpfarch_x86_64   := x86
uapi_x86_64      := x86-linux-any

zig_arm64-v8a     := aarch64-linux-musl
shim_arm64-v8a    := aarch64-linux-gnu
cpu_arm64-v8a     := -mcpu=generic
protect_arm64-v8a := -mbranch-protection=bti+pac-ret
drop_tags_arm64-v8a := 0x70000001
bpfarch_arm64-v8a := arm64
uapi_arm64-v8a    := aarch64-linux-any

zig_armeabi-v7a     := arm-linux-musleabihf
shim_armeabi-v7a    := arm-linux-gnueabihf
cpu_armeabi-v7a     := -mcpu=generic+v7a
bpfarch_armeabi-v7a :=
uapi_armeabi-v7a    := arm-linux-any
