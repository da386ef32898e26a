/*
 * spelling.c: text that is numbers or dates as people write them, after SpellingTally of Penstock's columns/spelling.py.
 */
#include "postgres.h"

#include "catalog/pg_collation.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/json.h"

#include "spelling.h"

#define MOST_ODD 4				/* values that are no numbers; one more than a message shows */
#define SPELLED "^\\s*[-+]?(\\d+,\\d+|\\d{1,3}([.,' ]\\d{3})+([.,]\\d+)?|\\d+([.,]\\d+)?\\s?%|[$€£]\\s?\\d[\\d,]*(\\.\\d+)?)\\s*$"
#define PLAIN "^\\s*[-+]?(\\d+\\.?\\d*|\\.\\d+)([eE][-+]?\\d+)?\\s*$"
#define MONTH "(jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sept?(ember)?|oct(ober)?|nov(ember)?|dec(ember)?)\\.?"
#define DAY "\\d{1,2}(st|nd|rd|th)?"
#define DATE "(?i)^((mon|tues?|wed(nes)?|thu(rs)?|fri|sat(ur)?|sun)(day)?[., ]+)?" \
	"(\\d{1,4}\\.\\d{1,2}\\.\\d{1,4}|\\d{1,4}/\\d{1,2}/\\d{1,4}|\\d{1,4}-\\d{1,2}-\\d{1,4}" \
	"|" DAY "[ ./-]*" MONTH "[ ,./-]*\\d{2,4}|" MONTH "[ ./-]*" DAY "[ ,./-]+\\d{2,4}|\\d{4}[ ./-]*" MONTH "[ ./-]*" DAY ")" \
	"([ T,].*)?$"
#define ISO "^\\d{4}-\\d{2}-\\d{2}"

void
spelling_start(Spelling *spelling, MemoryContext context)
{
	spelling->number = texts_make(context);
	spelling->date = texts_make(context);
	spelling->iso_date = texts_make(context);
	spelling->odd = texts_make(context);
}

static bool
matches(text *value, const char *pattern)
{
	text	   *asked = cstring_to_text(pattern);
	bool		found = DatumGetBool(DirectFunctionCall2Coll(textregexeq, C_COLLATION_OID, PointerGetDatum(value), PointerGetDatum(asked)));

	pfree(asked);
	return found;
}

static void
note(Texts *texts, int most, const char *text, uint32 size)
{
	if (texts->count < most)
		texts_add(texts, text, size);
}

void
spelling_add(Spelling *spelling, const char *text, uint32 size, bool code, int64 count)
{
	struct varlena *value;
	bool		digits = false;

	spelling->codes |= code;
	for (uint32 i = 0; i < size && !digits; i++)
		digits = text[i] >= '0' && text[i] <= '9';
	if (!digits)				/* no pattern matches */
	{
		spelling->others += count;
		note(spelling->odd, MOST_ODD, text, size);
		return;
	}
	value = cstring_to_text_with_len(text, size);
	if (matches(value, SPELLED))
	{
		spelling->spelled += count;
		note(spelling->number, 1, text, size);
	}
	else if (!code && matches(value, PLAIN))
		spelling->plain += count;
	else
	{
		spelling->others += count;
		note(spelling->odd, MOST_ODD, text, size);
	}
	if (matches(value, DATE))
	{
		spelling->dates += count;
		note(matches(value, ISO) ? spelling->iso_date : spelling->date, 1, text, size);
	}
	pfree(value);
}

static void
append_texts(StringInfo out, const char *name, const Texts *texts)
{
	appendStringInfo(out, ",\"%s\":[", name);
	for (int i = 0; i < texts->count; i++)
	{
		if (i)
			appendStringInfoChar(out, ',');
		escape_json(out, texts->texts[i]);
	}
	appendStringInfoChar(out, ']');
}

void
spelling_append(const Spelling *spelling, StringInfo out)
{
	appendStringInfo(out, ",\"plain\":" INT64_FORMAT ",\"spelled\":" INT64_FORMAT ",\"others\":" INT64_FORMAT ",\"date_rows\":" INT64_FORMAT
					 ",\"codes\":%s", spelling->plain, spelling->spelled, spelling->others, spelling->dates,
					 spelling->codes ? "true" : "false");
	append_texts(out, "number", spelling->number);
	append_texts(out, "date", spelling->date);
	append_texts(out, "iso_date", spelling->iso_date);
	append_texts(out, "odd", spelling->odd);
}
