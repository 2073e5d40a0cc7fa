/* The other process of a test with seeded tensors: serves as "callee" until SIGTERM, and returns the
 * exit status. A body says which seed, how many "bytes" and on which "device".
 *
 *   take   replies how many bytes of tensor "x" are "wrong"; its memory was poisoned
 *   sink   takes tensors unseen, inline: for timing
 *   give   replies with tensor "y" ("strided" or not) of the seed's data; seed 0: any, for timing */
#ifndef TEST_SUPPORT_SEEDED_CALLEE_H
#define TEST_SUPPORT_SEEDED_CALLEE_H

int seeded_callee_run(void);

#endif
