/* SPDX-License-Identifier: Apache-2.0 */
/* Standard input: lengths (u32) and records of evidence. Prints for each whether it lies within its bounds. */
#include "agent/evidence/bounds.h"

#include <stdio.h>
#include <stdlib.h>

int main(void)
{
	ml_u32 bytes;

	while (fread(&bytes, sizeof(bytes), 1, stdin) == 1) {
		void *record = malloc(bytes); /* of its own: the sanitizer sees what is read behind it */

		if (!record || fread(record, 1, bytes, stdin) != bytes)
			return 2;
		puts(ml_evidence_is_sound(record, bytes) ? "sound" : "refused");
		free(record);
	}
	return 0;
}
