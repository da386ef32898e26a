/*
 * recipe.h: how stored columns become features: a recipe of Penstock's, as it is saved with a model.
 */
#ifndef PENSTOCK_RECIPE_H
#define PENSTOCK_RECIPE_H

#include "access/htup.h"
#include "utils/jsonb.h"

#include "texts.h"
#include "values.h"

typedef enum PartKind
{
	PART_NUMBER,
	PART_CATEGORY,
	PART_DATE,
	PART_HASH,
	PART_VECTOR					/* an array of numbers, each of them a feature */
} PartKind;

/* A column, and the features that it becomes; of a date, a part for its days and one for each category that is read off it. */
typedef struct Part
{
	PartKind	kind;
	int			field;
	uint32		start;			/* its first feature */
	bool		fills;			/* numbers: whether there is something that stands for a missing one */
	double		fill;
	double		center;			/* of dates the day that others are counted from */
	double		scale;
	bool		missing;		/* whether a feature tells that the value is missing */
	bool		rare;			/* categories: whether other values share a feature */
	DatePart	date_part;
	Texts	   *levels;			/* also the values that stand for a missing one, whose number is -1 */
	int			level_count;
	Texts	   *null_values;
	float	   *null_numbers;
	int			null_number_count;
	uint32		seed;
	uint32		mask;
	bool		words;
	uint32		width;			/* of vectors */
} Part;

typedef struct Recipe
{
	int			part_count;
	Part	   *parts;
	int			field_count;	/* different columns */
	char	  **fields;
	bool	   *as_text;		/* whether a column is a category, or hashed */
	bool	   *as_array;
	uint32		width;

	/* The features of the row encoded last, those that are not 0; one may come twice, to be added up. */
	int32	   *indices;
	float	   *values;
	uint32		count;
	uint32		room;
	bool		complete;		/* no value is missing that nothing stands for */
	MemoryContext context;
} Recipe;

extern Recipe *recipe_read(MemoryContext context, Jsonb *parts);

/* A recipe and the rows that it reads. */
typedef struct Encoder
{
	Recipe	   *recipe;
	bool		by_name;		/* fields of a row are found by their names, else by their places */
	Oid			type;			/* of rows */
	int32		modifier;
	TupleDesc	row;
	int		   *places;			/* of the recipe's fields in the row */
	Reader	   *readers;
	Value	   *fields;
	Datum	   *datums;
	bool	   *nulls;
} Encoder;

extern Encoder *encoder_make(MemoryContext context, Jsonb *parts, bool by_name);

/* Leaves a row's features in the recipe; false where a value is missing that nothing stands for. */
extern bool encoder_run(Encoder *encoder, HeapTupleHeader row);

#endif							/* PENSTOCK_RECIPE_H */
