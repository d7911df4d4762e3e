# The leaky program of `memleak-android demo`: for the machine that builds, in the shape of released software:
# optimised, without frame pointers, stripped, its symbols in a file beside it.
DEMO      := $(PREBUILT)/x86_64
DEMO_WORK := $(B)/demo
DEMO_CXX  := $(if $(shell command -v g++),g++,$(PYTHON) -m ziglang c++ -target x86_64-linux-gnu.2.31)
DEMO_DEPS := $(wildcard device/demo/*.cc device/demo/*.h) $(DEMO_WORK)/planted.h ndk-build/demo.mk
# -fno-optimize-sibling-calls: a frame replaced by a tail call is in no stack, so no table could name it.
# -fno-unroll-loops: an unrolled loop has a call site, and so a stack, for each of its rounds.
DEMO_CXXFLAGS := -std=c++17 -O2 -g -fomit-frame-pointer -fno-optimize-sibling-calls -fno-builtin-malloc -fno-unroll-loops \
	-fasynchronous-unwind-tables -pthread $(WARNINGS) -ffile-prefix-map=$(CURDIR)=. -I device/demo -I $(DEMO_WORK)
DEMO_PROGRAM_SOURCES := $(filter-out %/plugin.cc,$(wildcard device/demo/*.cc))

DEMO_OUTPUTS := $(addprefix $(DEMO)/,memleak-demo memleak-demo.debug libmemleak-demo.so libmemleak-demo.so.debug demo.json)

$(DEMO_WORK)/planted.h: device/demo/demo.json device/demo/planted.py
	@mkdir -p $(@D)
	@$(PYTHON) device/demo/planted.py $< $@

$(DEMO_WORK)/libmemleak-demo.so: $(DEMO_DEPS)
	@echo "  CXX    $@"
	@$(DEMO_CXX) $(DEMO_CXXFLAGS) -fPIC -fvisibility=hidden -shared -Wl,-soname,$(@F) -Wl,--build-id=sha1 \
		device/demo/plugin.cc -o $@

$(DEMO_WORK)/memleak-demo: $(DEMO_WORK)/libmemleak-demo.so $(DEMO_DEPS)
	@echo "  CXX    $@"
	@$(DEMO_CXX) $(DEMO_CXXFLAGS) -fPIE -pie -Wl,--build-id=sha1 '-Wl,-rpath,$$ORIGIN' \
		$(DEMO_PROGRAM_SOURCES) $< -o $@

$(DEMO)/%.debug: $(DEMO_WORK)/%
	@mkdir -p $(@D)
	@objcopy --only-keep-debug --compress-debug-sections=zlib $< $@
	@chmod 644 $@

$(DEMO)/memleak-demo $(DEMO)/libmemleak-demo.so: $(DEMO)/%: $(DEMO_WORK)/% $(DEMO)/%.debug
	@objcopy --strip-all --add-gnu-debuglink=$@.debug $< $@.new && mv $@.new $@

$(DEMO)/demo.json: device/demo/demo.json
	@mkdir -p $(@D)
	@cp $< $@
