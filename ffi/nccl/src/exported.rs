//! How functions are exported: each has two names, `nccl...` and `pnccl...`, as profilers expect.

/// Exports functions whose bodies are `Result<Status>`, and lists their names.
macro_rules! exported {
    (
        $(#[doc = $list_doc:literal])*
        pub const $list:ident $(= $more:literal)*;
        $(
            $(#[doc = $doc:literal])*
            $nccl:ident $pnccl:ident($($arg:ident: $type:ty),* $(,)?) $body:block
        )*
    ) => {
        $(
            $(#[doc = $doc])*
            ///
            /// # Safety
            /// The contract of NCCL: pointers lead to what their names say, handles were made by
            /// this library, memory stays until the stream has passed the call.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $nccl($($arg: $type),*) -> c_int {
                #[allow(unused_unsafe, reason = "some bodies have nothing unsafe")]
                guard(stringify!($nccl), || $body)
            }

            /// The same, for profilers that take its name.
            ///
            /// # Safety
            /// As the function without `p`.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $pnccl($($arg: $type),*) -> c_int {
                // SAFETY: the same contract.
                unsafe { $nccl($($arg),*) }
            }
        )*

        $(#[doc = $list_doc])*
        pub const $list: &[&str] = &[$($more,)* $(stringify!($nccl)),*];
    };
}

pub(crate) use exported;
