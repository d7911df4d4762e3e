// SPDX-License-Identifier: Apache-2.0
// Entry into bionic's libc of a program whose main() is in another file.
int main(int argc, char **argv, char **environment);

#define BIONIC
#include "../../../sessions/bionic/start.h"
