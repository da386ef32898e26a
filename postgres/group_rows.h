/*
 * group_rows.h: the rows of a group, packed as the kernels take them, in memory or beyond.
 */
#ifndef PENSTOCK_GROUP_ROWS_H
#define PENSTOCK_GROUP_ROWS_H

#include "storage/buffile.h"

#include "penstock.h"

/* What a row is for. */
typedef enum RowUse
{
	USE_TRAINING,
	USE_SELECTION,				/* the penalties are compared on them */
	USE_HELD_OUT,				/* seen by no choice */
	USE_ALL
} RowUse;

/* The shares of the rows that are not for training. */
typedef struct Split
{
	double		held_out;
	double		selection;
} Split;

/*
 * Rows of one length, in blocks of half the buffer; the other half holds the rows of a block as they are learnt from. More rows
 * than one block go to a temporary file. A row's last word, which no kernel looks at, is the lot that decides what it is for.
 */
typedef struct GroupRows
{
	MemoryContext context;
	uint32		width;
	Size		row_words;
	uint32		most;			/* rows of a block */
	uint32		room;			/* rows that there is memory for */
	uint32		held;			/* rows in memory */
	uint64		rows;
	float	   *words;
	float	   *scaled;			/* as large; NULL where blocks are read from the file, and scaled in place */
	uint32	   *order;
	BufFile    *file;			/* NULL until a block is full */
	bool		closed;			/* no rows are to come */
	const Worker *scale;		/* by whose scale rows are given out; NULL: as they came */
} GroupRows;

/* Rows of a block for some use: `words` with the places of `count` of them. */
typedef struct Block
{
	const float *words;
	const uint32 *order;
	uint32		count;
} Block;

extern GroupRows *group_rows_make(MemoryContext context, uint32 width, int64 buffer_bytes);
extern void group_rows_add(GroupRows *rows, float label, const float *values, uint32 lot);
extern void group_rows_free(GroupRows *rows);

/* Has rows given out by a worker's scale from here on; as they came where it is NULL. */
extern void group_rows_scale(GroupRows *rows, const Worker *worker);

/* Gives the rows of block `number`, from 0, that are for some use; false where there is no such block. */
extern bool group_rows_block(GroupRows *rows, uint32 number, RowUse use, const Split *split, Block *block);

#endif							/* PENSTOCK_GROUP_ROWS_H */
