/* What csmith's headers ask of the C library, on a GPU without one. */
#define fabs __builtin_fabs
#define fabsf __builtin_fabsf
