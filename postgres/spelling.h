/*
 * spelling.h: text that is numbers or dates as people write them, which no feature reads.
 */
#ifndef PENSTOCK_SPELLING_H
#define PENSTOCK_SPELLING_H

#include "lib/stringinfo.h"

#include "texts.h"

/* How many rows of a column of text are plain numbers, numbers as people write them, or neither, and dates among those. */
typedef struct Spelling
{
	int64		plain;
	int64		spelled;
	int64		others;
	int64		dates;
	bool		codes;			/* some numbers have a zero in front */
	Texts	   *number;			/* the first number as people write it; none where there is none */
	Texts	   *date;			/* the first date in another spelling than that of ISO 8601 */
	Texts	   *iso_date;
	Texts	   *odd;			/* the first values that are no numbers */
} Spelling;

extern void spelling_start(Spelling *spelling, MemoryContext context);

/* Takes in a text that so many rows have, and that is none of those that stand for missing ones. */
extern void spelling_add(Spelling *spelling, const char *text, uint32 size, bool code, int64 count);

/* Appends the members of a JSON object, with a comma in front. */
extern void spelling_append(const Spelling *spelling, StringInfo out);

#endif							/* PENSTOCK_SPELLING_H */
