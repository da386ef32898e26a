/*
 * texts.h: texts told apart: a hash table of them, and the hash that Penstock's models are made with.
 */
#ifndef PENSTOCK_TEXTS_H
#define PENSTOCK_TEXTS_H

#include "postgres.h"

/* Different texts, each with a number. They are numbered from 0 in the order in which they came. */
typedef struct Texts
{
	MemoryContext context;
	int32		count;
	int32		room;
	char	  **texts;
	uint32	   *sizes;
	int64	   *numbers;
	int32	   *slots;			/* a place in the arrays above, or -1 */
	uint32		mask;
} Texts;

extern Texts *texts_make(MemoryContext context);

/* Returns the place of a text, -1 where it is not there. */
extern int32 texts_find(const Texts *texts, const char *text, uint32 size);

/* Returns the place of a text, which is put there with the number 0 if it is new. */
extern int32 texts_add(Texts *texts, const char *text, uint32 size);

/* MurmurHash3 x86 32, as penstock.columns.hashing has it. */
extern uint32 murmur3(const char *text, uint32 size, uint32 seed);

/* Finds the next run of bytes that are not ASCII white space; false where there is none. */
extern bool next_word(const char **at, const char *end, const char **word, uint32 *size);

#endif							/* PENSTOCK_TEXTS_H */
