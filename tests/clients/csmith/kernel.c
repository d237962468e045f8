/* A program of csmith as a kernel of one thread, which leaves its checksum at `out`. */
#define main program
#include PROGRAM
__attribute__((nvptx_kernel)) void run(unsigned *out)
{
	program();
	*out = result;
}
