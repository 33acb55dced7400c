//! What may happen in a model, as one list.

/// Declares the actions of a model: each with its effect and, after `fair`, whether it is taken eventually if it is
/// possible again and again ([`is_fair`](crate::explore::Fairness::is_fair)).
macro_rules! actions {
    (|$model:ident: &$Model:ty, $state:ident: $State:ty| $(
        $(#[$doc:meta])* $name:ident $(($($arg:ident: $type:ty),+))? $(fair $(if $condition:expr)?)? => $effect:expr
    ),+ $(,)?) => {
        /// What may happen.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Action {
            $($(#[$doc])* $name $(($($type),+))?,)+
        }

        impl Action {
            #[allow(unused_variables, reason = "an effect may need the state only")]
            fn apply(self, $model: &$Model, $state: &mut $State) {
                match self {
                    $(Self::$name $(($($arg),+))? => { $effect; })+
                }
            }
        }

        impl $crate::explore::Fairness<$Model> for Action {
            #[allow(unused_variables, reason = "most actions are fair always or never")]
            fn is_fair(&self, $model: &$Model, $state: &$State) -> bool {
                match *self {
                    $(Self::$name $(($($arg),+))? => $crate::actions::actions!(@$(fair $(if $condition)?)?),)+
                }
            }
        }
    };
    (@) => { false };
    (@fair) => { true };
    (@fair if $condition:expr) => { $condition };
}
pub(crate) use actions;
