// define_events: includes events.def with macros that the includer defines, then
// undefines them. No include guard.
#ifndef AE_REQUIRED_AS
#define AE_REQUIRED_AS(kind, member, name, number, meaning)
#endif
#ifndef AE_OPTIONAL_AS
#define AE_OPTIONAL_AS(kind, member, name, number, meaning)
#endif
#define AE_REQUIRED(kind, name, number, meaning) AE_REQUIRED_AS(kind, name, #name, number, meaning)
#define AE_OPTIONAL(kind, name, number, meaning) AE_OPTIONAL_AS(kind, name, #name, number, meaning)
#include "log/events.def"
#undef AE_REQUIRED
#undef AE_OPTIONAL
#undef AE_REQUIRED_AS
#undef AE_OPTIONAL_AS
#undef AE_EVENT
